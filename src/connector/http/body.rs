//! The body of a reply, over either protocol.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};

/// The rest of the body does not arrive.
#[derive(Debug)]
pub struct Broken;

pub enum ReplyBody {
    Http1(Incoming),
    Http2 {
        body: h2::RecvStream,
        /// The slot of the stream, in use until the reply is read.
        _slot: Box<dyn Send>,
    },
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.get_mut() {
            Self::Http1(body) => Pin::new(body).poll_frame(context).map_err(|_| Broken),
            Self::Http2 { body, .. } => Poll::Ready(match ready!(body.poll_data(context)) {
                Some(Ok(data)) => {
                    // An error means that the stream has ended.
                    let _ = body.flow_control().release_capacity(data.len());
                    Some(Ok(Frame::data(data)))
                }
                Some(Err(_)) => Some(Err(Broken)),
                None => None,
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2 { body, .. } => body.is_end_stream(),
        }
    }
}
