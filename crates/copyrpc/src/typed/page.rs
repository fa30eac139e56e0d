//! Results that are longer than an answer.

use crate::typed::TypedError;

/// Some items of a result, and where the next ones begin, in the service's own terms: a key, an offset.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Page<T, C> {
    /// The items, in order.
    pub items: Vec<T>,
    /// The argument of a request for the next page; `None`: this is the last one.
    pub next: Option<C>,
}

/// Asks for one page after the other: `ask` gets what the page before said, `None` for the first.
pub fn pages<T, C, A>(ask: A) -> Pages<C, A>
where
    A: FnMut(Option<C>) -> Result<Page<T, C>, TypedError>,
{
    Pages { ask, next: Next::First }
}

/// Where the next page begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next<C> {
    First,
    At(C),
    /// There is none.
    Over,
}

impl<C> Next<C> {
    fn after(next: Option<C>) -> Self {
        next.map_or(Self::Over, Self::At)
    }

    /// The argument of the next request; `None`: there is none.
    fn take(&mut self) -> Option<Option<C>> {
        match std::mem::replace(self, Self::Over) {
            Self::First => Some(None),
            Self::At(cursor) => Some(Some(cursor)),
            Self::Over => None,
        }
    }
}

/// The items of each page, asked for by a call. An error ends it.
#[derive(Clone, Debug)]
pub struct Pages<C, A> {
    ask: A,
    next: Next<C>,
}

impl<T, C, A> Iterator for Pages<C, A>
where
    A: FnMut(Option<C>) -> Result<Page<T, C>, TypedError>,
{
    type Item = Result<Vec<T>, TypedError>;

    fn next(&mut self) -> Option<Self::Item> {
        let told = (self.ask)(self.next.take()?);
        Some(told.map(|page| {
            self.next = Next::after(page.next);
            page.items
        }))
    }
}

/// As [`pages`], with calls that are futures.
pub fn future_pages<T, C, F, A>(ask: A) -> FuturePages<C, A>
where
    A: FnMut(Option<C>) -> F,
    F: Future<Output = Result<Page<T, C>, TypedError>>,
{
    FuturePages { ask, next: Next::First }
}

/// The items of each page, asked for by a call that is a future. An error ends it.
#[derive(Clone, Debug)]
pub struct FuturePages<C, A> {
    ask: A,
    next: Next<C>,
}

impl<C, A> FuturePages<C, A> {
    /// The items of the next page; `None` after the last one. If the future is dropped there are none afterwards.
    pub async fn next<T, F>(&mut self) -> Option<Result<Vec<T>, TypedError>>
    where
        A: FnMut(Option<C>) -> F,
        F: Future<Output = Result<Page<T, C>, TypedError>>,
    {
        let told = (self.ask)(self.next.take()?).await;
        Some(told.map(|page| {
            self.next = Next::after(page.next);
            page.items
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(from: Option<u32>) -> Result<Page<u32, u32>, TypedError> {
        let from = from.unwrap_or(0);
        match from {
            6 => Err(TypedError::Mismatch { method: "page" }),
            _ => Ok(Page { items: vec![from, from + 1], next: (from < 4).then_some(from + 2) }),
        }
    }

    #[test]
    fn pages_are_asked_for_up_to_the_last_one_or_an_error() {
        let all: Result<Vec<_>, _> = pages(page).collect();
        assert_eq!(all.unwrap().concat(), [0, 1, 2, 3, 4, 5]);
        let mut asked = 0;
        let mut failing = pages(|from: Option<u32>| {
            asked += 1;
            page(from.map(|_| 6))
        });
        assert!(failing.next().is_some_and(|it| it.is_ok()));
        assert!(failing.next().is_some_and(|it| it.is_err()));
        assert!(failing.next().is_none());
        assert_eq!(asked, 2);
    }
}
