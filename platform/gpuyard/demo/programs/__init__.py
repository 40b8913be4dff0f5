"""The programs that the demo runs: real work on the CPU, started by real agents."""
