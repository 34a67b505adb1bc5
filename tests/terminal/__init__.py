"""memctl as people and scripts meet it: at a terminal, in pipes, in cron."""
