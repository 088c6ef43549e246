//! The kinds of failures that plugins report.

use std::{ffi::c_int, fmt};

/// The kind of a failure that a plugin reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the names are the documentation: they are those of absl::StatusCode"
)]
pub enum ErrorCode {
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl ErrorCode {
    /// From the number in the C header; numbers from the future are [`ErrorCode::Unknown`].
    pub(crate) fn from_raw(code: c_int) -> ErrorCode {
        match code {
            1 => ErrorCode::Cancelled,
            3 => ErrorCode::InvalidArgument,
            4 => ErrorCode::DeadlineExceeded,
            5 => ErrorCode::NotFound,
            6 => ErrorCode::AlreadyExists,
            7 => ErrorCode::PermissionDenied,
            8 => ErrorCode::ResourceExhausted,
            9 => ErrorCode::FailedPrecondition,
            10 => ErrorCode::Aborted,
            11 => ErrorCode::OutOfRange,
            12 => ErrorCode::Unimplemented,
            13 => ErrorCode::Internal,
            14 => ErrorCode::Unavailable,
            15 => ErrorCode::DataLoss,
            16 => ErrorCode::Unauthenticated,
            _ => ErrorCode::Unknown,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorCode::Cancelled => "cancelled",
            ErrorCode::Unknown => "an unknown error",
            ErrorCode::InvalidArgument => "an invalid argument",
            ErrorCode::DeadlineExceeded => "deadline exceeded",
            ErrorCode::NotFound => "not found",
            ErrorCode::AlreadyExists => "already exists",
            ErrorCode::PermissionDenied => "permission denied",
            ErrorCode::ResourceExhausted => "out of memory or another resource",
            ErrorCode::FailedPrecondition => "a failed precondition",
            ErrorCode::Aborted => "aborted",
            ErrorCode::OutOfRange => "out of range",
            ErrorCode::Unimplemented => "not implemented",
            ErrorCode::Internal => "an internal error",
            ErrorCode::Unavailable => "unavailable",
            ErrorCode::DataLoss => "data loss",
            ErrorCode::Unauthenticated => "unauthenticated",
        })
    }
}
