"""Trajectories of agents in files, in the Agent Trajectory Interchange Format (ATIF)."""
