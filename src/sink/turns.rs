//! Fair turns: queues by route and failure domain, for a scarce resource of a sink such as connections.
//!
//! Routes take turns, and so do the domains of a route. A route with a thousand domains has as many turns as a route
//! with one. Each queue is first in, first out. An empty queue is removed, so memory is bounded by the maximum number
//! of simultaneous items.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    mem,
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::Domain;

/// Items by route and failure domain. `push` and `pop` take constant time.
pub struct Turns<T> {
    routes: Round<Arc<str>, Round<Option<Domain>, VecDeque<T>>>,
    len: usize,
}

/// Queues that are not empty, in the order of their turns. Neither the next item of the latest queue nor a turn needs a
/// lookup.
struct Round<K, Q> {
    /// `None` is a free place.
    places: Vec<Option<(K, Q)>>,
    free: Vec<usize>,
    by_key: HashMap<K, usize>,
    order: VecDeque<usize>,
    /// The place of the latest queue.
    latest: usize,
    /// The latest queue became empty, and has no turn. It is kept until another queue is the latest.
    is_latest_empty: bool,
}

impl<K, Q> Default for Round<K, Q> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::new(),
            order: VecDeque::new(),
            latest: 0,
            is_latest_empty: false,
        }
    }
}

impl<K: Clone + Eq + Hash, Q: Default> Round<K, Q> {
    /// The queue of `key`. A new queue is the last to have its turn.
    fn queue(&mut self, key: K) -> &mut Q {
        if matches!(self.places.get(self.latest), Some(Some((latest, _))) if *latest == key) {
            if mem::take(&mut self.is_latest_empty) {
                self.order.push_back(self.latest);
            }
        } else {
            if mem::take(&mut self.is_latest_empty) {
                self.remove(self.latest);
            }
            self.latest = match self.by_key.get(&key) {
                Some(place) => *place,
                None => self.add(key),
            };
        }
        let place = self.places[self.latest].as_mut();
        &mut place.expect("the place of a queue").1
    }

    fn add(&mut self, key: K) -> usize {
        let queue = Some((key.clone(), Q::default()));
        let place = self.free.pop().unwrap_or(self.places.len());
        if place == self.places.len() {
            self.places.push(queue);
        } else {
            self.places[place] = queue;
        }
        self.by_key.insert(key, place);
        self.order.push_back(place);
        place
    }

    fn remove(&mut self, place: usize) -> Option<Q> {
        let (key, queue) = self.places[place].take()?;
        self.by_key.remove(&key);
        self.free.push(place);
        Some(queue)
    }

    /// Removes the queue of `key` and its turn.
    fn take(&mut self, key: &K) -> Option<Q> {
        let place = *self.by_key.get(key)?;
        self.order.retain(|other| *other != place);
        if place == self.latest {
            self.is_latest_empty = false;
        }
        self.remove(place)
    }

    fn get(&self, key: &K) -> Option<&Q> {
        self.places[*self.by_key.get(key)?].as_ref().map(|(_, queue)| queue)
    }

    /// One item of the queue that has its turn. `take` removes the item, and returns it and whether the queue is empty
    /// after that.
    fn next<T>(&mut self, take: impl FnOnce(&mut Q) -> (T, bool)) -> Option<T> {
        let place = *self.order.front()?;
        let (_, queue) = self.places[place].as_mut()?;
        let (item, is_empty) = take(queue);
        if is_empty {
            self.order.pop_front();
            if place == self.latest {
                self.is_latest_empty = true;
            } else {
                self.remove(place);
            }
        } else {
            self.order.rotate_left(1);
        }
        Some(item)
    }

    fn has_others(&self, key: &K) -> bool {
        match self.by_key.get(key) {
            Some(place) if !self.is_latest_empty || *place != self.latest => self.order.len() > 1,
            _ => !self.order.is_empty(),
        }
    }
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { routes: Round::default(), len: 0 }
    }
}

impl<T> Turns<T> {
    pub fn push(&mut self, route: Arc<str>, domain: Option<Domain>, item: T) {
        self.routes.queue(route).queue(domain).push_back(item);
        self.len += 1;
    }

    pub fn pop(&mut self) -> Option<T> {
        let item = self.routes.next(|domains| {
            let item = domains.next(|items| (items.pop_front(), items.is_empty())).flatten();
            (item, domains.order.is_empty())
        });
        self.len -= usize::from(item.is_some());
        item.flatten()
    }

    /// Removes the items of a route. The time grows with the number of routes.
    pub fn remove(&mut self, route: &Arc<str>) -> Vec<T> {
        let Some(mut domains) = self.routes.take(route) else { return Vec::new() };
        let items = std::iter::from_fn(|| domains.next(|items| (items.pop_front(), items.is_empty())));
        let items: Vec<T> = items.flatten().collect();
        self.len -= items.len();
        items
    }

    /// Whether there are items of another route or domain.
    pub fn has_others(&self, route: &Arc<str>, domain: Option<&Domain>) -> bool {
        let domains = self.routes.get(route);
        self.routes.has_others(route) || domains.is_some_and(|domains| domains.has_others(&domain.cloned()))
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Permits. Routes and failure domains wait for them in `Turns`.
pub struct FairPermits(Mutex<Permits>);

struct Permits {
    free: usize,
    waiting: Turns<oneshot::Sender<FairPermit>>,
}

/// Returned on drop. `None`: it was passed to a waiter.
pub struct FairPermit(Option<Arc<FairPermits>>);

impl FairPermits {
    pub fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Permits { free: permits, waiting: Turns::default() })))
    }

    /// Waits for a permit. Cancel-safe.
    pub async fn acquire(self: &Arc<Self>, route: &Arc<str>, domain: Option<Domain>) -> FairPermit {
        loop {
            let turn = {
                let mut permits = self.lock();
                if permits.free > 0 {
                    permits.free -= 1;
                    return FairPermit(Some(Arc::clone(self)));
                }
                let (granted, turn) = oneshot::channel();
                permits.waiting.push(Arc::clone(route), domain.clone(), granted);
                turn
            };
            // If this call is cancelled while the channel holds the permit, dropping the channel returns the permit.
            if let Ok(permit) = turn.await {
                return permit;
            }
        }
    }

    /// Whether another route or domain waits, or waited and was cancelled.
    pub fn others_wait(&self, route: &Arc<str>, domain: Option<&Domain>) -> bool {
        self.lock().waiting.has_others(route, domain)
    }

    /// A panic cannot leave the queue half-changed.
    fn lock(&self) -> MutexGuard<'_, Permits> {
        self.0.lock()
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        let Some(permits) = self.0.take() else { return };
        loop {
            let next = {
                let mut inner = permits.lock();
                let next = inner.waiting.pop();
                inner.free += usize::from(next.is_none());
                next
            };
            let Some(waiting) = next else { return };
            match waiting.send(Self(Some(Arc::clone(&permits)))) {
                Ok(()) => return,
                // This waiter was cancelled, so the next one has its turn.
                Err(mut cancelled) => cancelled.0 = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn route(name: &str) -> Arc<str> {
        name.into()
    }

    fn all(turns: &mut Turns<String>) -> String {
        std::iter::from_fn(|| turns.pop()).collect::<Vec<_>>().join(" ")
    }

    /// Items named ROUTE DOMAIN NUMBER, as `a-0` or `ax0`.
    fn push(turns: &mut Turns<String>, of: &str, items: usize) {
        let (name, domain) = of.split_at(1);
        let key = Some(domain).filter(|domain| *domain != "-").map(Domain::from);
        for n in 0..items {
            turns.push(route(name), key.clone(), format!("{of}{n}"));
        }
    }

    #[test]
    fn routes_take_turns_and_keep_their_own_order() {
        let mut turns = Turns::default();
        push(&mut turns, "a-", 4);
        push(&mut turns, "b-", 2);
        push(&mut turns, "c-", 1);
        assert!(turns.len() == 7 && !turns.is_empty());
        assert_eq!(all(&mut turns), "a-0 b-0 c-0 a-1 b-1 a-2 a-3");
        assert!(turns.is_empty() && turns.pop().is_none());
    }

    #[test]
    fn a_route_with_many_domains_has_as_many_turns_as_one_with_one() {
        let mut turns = Turns::default();
        for domain in ["x", "y", "z"] {
            push(&mut turns, &format!("a{domain}"), 2);
        }
        push(&mut turns, "b-", 3);
        assert_eq!(all(&mut turns), "ax0 b-0 ay0 b-1 az0 b-2 ax1 ay1 az1");
    }

    #[test]
    fn a_queue_that_is_new_or_was_empty_waits_one_round() {
        let mut turns = Turns::default();
        push(&mut turns, "a-", 100);
        assert_eq!(turns.pop().unwrap(), "a-0");
        push(&mut turns, "b-", 1);
        assert_eq!((turns.pop().unwrap(), turns.pop().unwrap()), ("a-1".to_owned(), "b-0".to_owned()));
        push(&mut turns, "b-", 1);
        assert_eq!((turns.pop().unwrap(), turns.pop().unwrap()), ("a-2".to_owned(), "b-0".to_owned()));
    }

    #[test]
    fn others_are_those_of_another_route_or_domain() {
        let mut turns = Turns::default();
        assert!(!turns.has_others(&route("a"), None));
        push(&mut turns, "a-", 2);
        assert!(!turns.has_others(&route("a"), None));
        assert!(turns.has_others(&route("a"), Some(&"x".into())) && turns.has_others(&route("b"), None));
        push(&mut turns, "ax", 1);
        assert!(turns.has_others(&route("a"), None) && turns.has_others(&route("a"), Some(&"x".into())));
        // The latest route has no items left, and another one has.
        let mut turns = Turns::default();
        push(&mut turns, "b-", 2);
        push(&mut turns, "a-", 1);
        assert_eq!((turns.pop().unwrap(), turns.pop().unwrap()), ("b-0".to_owned(), "a-0".to_owned()));
        assert!(turns.has_others(&route("a"), None) && !turns.has_others(&route("b"), None));
    }

    #[test]
    fn empty_queues_are_removed() {
        let mut turns = Turns::default();
        for n in 0..1000 {
            turns.push(route("a"), Some(format!("d{n}").into()), n);
        }
        assert_eq!(turns.routes.get(&route("a")).expect("a queue").places.len(), 1000);
        while turns.pop().is_some() {}
        assert!(turns.routes.order.is_empty());
        assert_eq!(turns.routes.get(&route("a")).expect("it is kept").by_key.len(), 1, "only the latest is kept");
        turns.push(route("b"), None, 0);
        assert_eq!((turns.pop(), turns.pop(), turns.routes.by_key.len()), (Some(0), None, 1));
        for n in 0..1000 {
            turns.push(route("a"), Some(format!("d{n}").into()), n);
            turns.push(route("b"), None, n);
            assert!(turns.pop().is_some());
        }
        assert_eq!(turns.routes.places.len(), 2, "places are used again");
    }

    #[test]
    fn the_items_of_a_route_are_removed_and_the_others_keep_their_turns() {
        let mut turns = Turns::default();
        push(&mut turns, "a-", 2);
        push(&mut turns, "bx", 2);
        push(&mut turns, "by", 1);
        push(&mut turns, "c-", 2);
        assert_eq!(turns.remove(&route("b")), ["bx0", "by0", "bx1"]);
        assert!(turns.remove(&route("b")).is_empty());
        assert_eq!(turns.len(), 4);
        // The latest one. The next route gets its place.
        assert_eq!(turns.remove(&route("c")), ["c-0", "c-1"]);
        push(&mut turns, "d-", 1);
        push(&mut turns, "b-", 1);
        assert_eq!(all(&mut turns), "a-0 d-0 b-0 a-1");
        push(&mut turns, "a-", 1);
        assert_eq!(turns.pop().unwrap(), "a-0");
        assert!(turns.remove(&route("a")).is_empty(), "it is empty, and was the latest");
        push(&mut turns, "e-", 1);
        push(&mut turns, "a-", 1);
        assert_eq!(all(&mut turns), "e-0 a-0");
        assert!(turns.is_empty());
        // Another one than the latest, which is empty and gets items again.
        push(&mut turns, "b-", 2);
        push(&mut turns, "a-", 1);
        assert_eq!((turns.pop().unwrap(), turns.pop().unwrap()), ("b-0".to_owned(), "a-0".to_owned()));
        assert_eq!(turns.remove(&route("b")), ["b-1"]);
        push(&mut turns, "a-", 1);
        assert_eq!(all(&mut turns), "a-0");
    }

    #[test]
    fn permits_go_round_and_those_of_the_cancelled_are_not_lost() {
        let permits = FairPermits::new(1);
        let (a, b) = (route("a"), route("b"));
        let held = permits.acquire(&a, None).now_or_never().expect("it is free");
        let mut waiting: Vec<_> =
            [&a, &a, &b].map(|route| Some(Box::pin(permits.acquire(route, None)))).into_iter().collect();
        let mut got = |n: usize| waiting[n].as_mut().and_then(|one| one.as_mut().now_or_never());
        assert!((0..3).all(|n| got(n).is_none()));
        assert!(permits.others_wait(&a, None) && permits.others_wait(&b, None));
        drop(held);
        let first = got(0).expect("the first of its route");
        assert!(got(1).is_none() && got(2).is_none());
        drop(first);
        let second = got(2).expect("the turn of the other route");
        drop(second);
        // The permit was granted, and the waiter is cancelled before it takes it.
        waiting[1] = None;
        let mut last = permits.acquire(&b, None).now_or_never();
        assert!(last.take().is_some() && !permits.others_wait(&b, None));
        let held = permits.acquire(&a, None).now_or_never().expect("it is free");
        let mut cancelled = Box::pin(permits.acquire(&a, None));
        assert!(cancelled.as_mut().now_or_never().is_none());
        drop((cancelled, held));
        assert!(permits.acquire(&b, None).now_or_never().is_some());
    }
}
