//! The CPU pool of a process: plain threads, bounded queues, codec contexts owned per worker.
