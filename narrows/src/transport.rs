//! What carries the wire bytes: TCP, unix sockets, pipes and files.

pub struct Link {}
