//! Whether a dialer can carry connections: a state that is read. Reports of it may be missed.

use std::collections::BTreeMap;

/// How the other end of a dialer is, and what it refuses.
#[derive(Debug, Default)]
pub struct Standing {
    pub(super) link: Link,
    /// Listeners that the other end refused or did not answer, by their number: where, and why.
    pub(super) refused: BTreeMap<usize, String>,
}

#[derive(Debug, Default)]
pub(super) enum Link {
    /// It did not answer yet.
    #[default]
    New,
    Up,
    /// Why it is lost.
    Lost(String),
}

impl Standing {
    /// Whether the other end answers.
    pub fn is_up(&self) -> bool {
        matches!(self.link, Link::Up)
    }

    /// What a person is told of it; an error if not every connection can be carried.
    ///
    /// # Errors
    /// Why connections cannot be carried.
    pub fn can_carry(&self) -> Result<String, String> {
        match (&self.link, self.refused.values().next()) {
            (Link::New, _) => Err("the tunnel is not up yet".into()),
            (Link::Lost(why), _) => Err(format!("the tunnel is lost: {why}")),
            (Link::Up, None) => Ok("the tunnel is up".into()),
            (Link::Up, Some(first)) => {
                let more = self.refused.len() - 1;
                let more = if more > 0 { format!("; and {more} more") } else { String::new() };
                Err(format!("the other end does not listen on {first}{more}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_can_carry_when_it_is_up_and_nothing_is_refused() {
        let mut standing = Standing::default();
        assert!(!standing.is_up() && standing.can_carry().unwrap_err().contains("not up yet"));
        standing.link = Link::Up;
        assert_eq!(standing.can_carry().as_deref(), Ok("the tunnel is up"));
        standing.refused.insert(3, "8080: the address is in use".into());
        standing.refused.insert(9, "8081: not allowed".into());
        let said = standing.can_carry().unwrap_err();
        assert_eq!(said, "the other end does not listen on 8080: the address is in use; and 1 more");
        standing.link = Link::Lost("gone".into());
        assert!(!standing.is_up() && standing.can_carry().unwrap_err().ends_with("lost: gone"));
    }
}
