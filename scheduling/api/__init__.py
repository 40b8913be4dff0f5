"""The REST API of workloads and of what they run on. `gpuyard.api` adds what other apps know of a workload."""
