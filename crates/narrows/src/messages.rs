//! Messages over a carrier of the application, each compressed with what came before it; no I/O, no thread and
//! no clock. A [`MessageEnd`] is one end of a connection, both directions.

pub use crate::message::{
    Came, Carrier, Contexts, Delivery, MESSAGE_MAX, MessageConfig, MessageEnd, Received, Sent, Traffic, Training,
};
