//! Both sides of a sample in one process, for tests.

use std::{sync::mpsc, thread};

use crate::{error::Error, sample::Ready, shared_words::SharedWords};

/// What `initiate` measures while `respond` serves.
pub(crate) fn value_of(
    respond: impl FnOnce(&SharedWords, Ready<'_>) -> Result<(), Error> + Send,
    initiate: impl FnOnce(&SharedWords) -> Result<f64, Error>,
) -> f64 {
    let shared = &SharedWords::new().unwrap();
    let (ready, is_ready) = mpsc::channel();
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            respond(shared, &mut || {
                let _ = ready.send(());
                Ok(())
            })
        });
        is_ready.recv().unwrap();
        let value = initiate(shared);
        server.join().unwrap().unwrap();
        value.unwrap()
    })
}
