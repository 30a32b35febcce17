//! Named places in the code at which a test can act. They cost nothing in a build without the feature `failpoints`.
//!
//! With the feature, a place can panic. The environment variable `FAILPOINTS` sets the actions of places at startup
//! (`worker-tick=1*panic;round-look=panic`), and `PUT /failpoints/{name}` on the admin listener sets one while the
//! program runs. The documentation of the crate `fail` lists the actions.
//!
//! In the library's unit tests, a place can run a callback: `when` puts an event exactly between two steps of one
//! thread. For example, a newcomer arrives right after the copy of a minute's filter.

/// Sets the action of a place, such as `1*panic` or `off`.
#[cfg(all(feature = "failpoints", feature = "admin"))]
pub(crate) async fn set(name: axum::extract::Path<String>, actions: String) -> Result<(), String> {
    fail::cfg(name.0, &actions)
}

/// Marks a place with this name.
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

    /// Runs `act` when this thread next reaches the place `name`, once. When dropped, the returned value checks that
    /// the thread has reached the place.
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
        // The callback is taken out before it runs, because it may reach places, too.
        let due = NEXT.with_borrow_mut(|next| next.take_if(|(place, _)| *place == name));
        if let Some((_, act)) = due {
            act();
        }
    }
}
