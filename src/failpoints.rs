//! Named places in the code at which a test can act. In a build without the feature `failpoints` they cost nothing.
//!
//! With the feature, a place can panic. The environment variable `FAILPOINTS` sets the places at the start
//! (`worker-tick=1*panic;round-look=panic`), and `PUT /failpoints/{name}` on the admin listener sets one while the program
//! runs. The documentation of the crate `fail` lists the actions.
//!
//! In the library's unit tests, a place can run a callback: `when` puts an event exactly between two steps of
//! one thread, such as a newcomer between the copy of a minute and its end.

/// Sets the action of a place: `1*panic`, `off`.
#[cfg(all(feature = "failpoints", feature = "admin"))]
pub(crate) async fn set(name: axum::extract::Path<String>, actions: String) -> Result<(), String> {
    fail::cfg(name.0, &actions)
}

/// A place with this name.
#[inline(always)]
pub(crate) fn at(_name: &'static str) {
    #[cfg(feature = "failpoints")]
    fail::fail_point!(_name);
    #[cfg(test)]
    callback::run(_name);
}

#[cfg(test)]
pub(crate) use callback::when;

#[cfg(test)]
mod callback {
    use std::cell::RefCell;

    type Callback = (&'static str, Box<dyn FnOnce()>);

    thread_local! {
        static NEXT: RefCell<Option<Callback>> = const { RefCell::new(None) };
    }

    /// Runs `act` when this thread next reaches the place `name`; the second and later times do nothing. The returned
    /// value checks when it is dropped that the thread has reached the place.
    pub(crate) fn when(name: &'static str, act: impl FnOnce() + 'static) -> Expected {
        NEXT.set(Some((name, Box::new(act))));
        Expected
    }

    #[must_use = "dropping it checks that the place was reached"]
    pub(crate) struct Expected;

    impl Drop for Expected {
        fn drop(&mut self) {
            let missed = NEXT.take();
            if let (Some((name, _)), false) = (missed, std::thread::panicking()) {
                panic!("the test never reached {name:?}");
            }
        }
    }

    pub(super) fn run(name: &str) {
        // Taken out first: the callback reaches places itself.
        let due = NEXT.with_borrow_mut(|next| next.take_if(|(place, _)| *place == name));
        if let Some((_, act)) = due {
            act();
        }
    }
}
