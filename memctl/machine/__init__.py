"""The machine below memctl: files, signals, threads, compression, time, and the installation."""
