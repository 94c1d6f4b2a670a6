//! The view that a person has chosen, and the keys that change it.

use super::world::{FlowRow, ProcessRow, World};

/// Longest filter: a line.
const FILTER_MAX: usize = 60;
/// Bounds of the interval, in seconds.
const INTERVAL_MIN: f64 = 0.1;
const INTERVAL_MAX: f64 = 60.0;

/// Columns that a table is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Goodput,
    Wire,
    Ratio,
    Cpu,
    Age,
    Name,
}

/// State of the view.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct View {
    pub(crate) sort: Sort,
    pub(crate) reverse: bool,
    pub(crate) filter: String,
    /// The filter is being typed.
    pub(crate) typing: bool,
    /// The table is that of processes.
    pub(crate) processes: bool,
    pub(crate) help: bool,
    pub(crate) paused: bool,
    pub(crate) interval_s: f64,
    /// First line of the table that is shown.
    pub(crate) top: usize,
}

/// A key, whatever terminal it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

/// What follows from a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Quit,
    Draw,
    Nothing,
}

impl View {
    /// Takes a key. `page`: lines of the table that fit.
    pub(crate) fn press(&mut self, key: Key, page: usize) -> Next {
        if self.typing {
            return self.typed(key);
        }
        if std::mem::take(&mut self.help) {
            return if key == Key::Char('q') { Next::Quit } else { Next::Draw };
        }
        match key {
            Key::Char('q') => return Next::Quit,
            // It undoes what hides lines, before it ends anything.
            Key::Escape if self.filter.is_empty() => return Next::Quit,
            Key::Escape => self.filter.clear(),
            Key::Char('?' | 'h') => self.help = true,
            Key::Char('g') => self.sort = Sort::Goodput,
            Key::Char('w') => self.sort = Sort::Wire,
            Key::Char('r') => self.sort = Sort::Ratio,
            Key::Char('c') => self.sort = Sort::Cpu,
            Key::Char('a') => self.sort = Sort::Age,
            Key::Char('n') => self.sort = Sort::Name,
            Key::Char('R') => self.reverse = !self.reverse,
            Key::Char('/') => (self.typing, self.top) = (true, 0),
            Key::Char(' ' | 'p') => self.paused = !self.paused,
            Key::Char('+') => self.interval_s = (self.interval_s / 2.0).max(INTERVAL_MIN),
            Key::Char('-') => self.interval_s = (self.interval_s * 2.0).min(INTERVAL_MAX),
            Key::Tab | Key::Char('v') => (self.processes, self.top) = (!self.processes, 0),
            Key::Up | Key::Char('k') => self.top = self.top.saturating_sub(1),
            Key::Down | Key::Char('j') => self.top = self.top.saturating_add(1),
            Key::PageUp => self.top = self.top.saturating_sub(page),
            Key::PageDown => self.top = self.top.saturating_add(page),
            Key::Home => self.top = 0,
            Key::End => self.top = usize::MAX,
            _ => return Next::Nothing,
        }
        Next::Draw
    }

    fn typed(&mut self, key: Key) -> Next {
        match key {
            Key::Enter => self.typing = false,
            Key::Escape => (self.typing, self.filter) = (false, String::new()),
            Key::Backspace => drop(self.filter.pop()),
            Key::Char(c) if !c.is_control() && self.filter.chars().count() < FILTER_MAX => self.filter.push(c),
            _ => return Next::Nothing,
        }
        Next::Draw
    }

    /// Flows that the filter lets through, in order.
    pub(crate) fn flows<'a>(&self, world: &'a World) -> Vec<&'a FlowRow> {
        let text =
            |row: &FlowRow| format!("{} {}/{} {} {} {}", row.kind, row.pid, row.id, row.name, row.method, row.bound);
        let mut rows: Vec<_> = world.flows.iter().filter(|row| self.lets_through(&text(row))).collect();
        let rates = |row: &FlowRow| match self.sort {
            Sort::Wire => row.rates.wire(),
            Sort::Ratio => row.ratio,
            Sort::Age => row.age_s,
            // A flow has no CPU of its own.
            Sort::Goodput | Sort::Cpu | Sort::Name => row.rates.goodput(),
        };
        rows.sort_by(|a, b| {
            let by_number = rates(b).total_cmp(&rates(a));
            let first = if self.sort == Sort::Name { a.name.cmp(&b.name) } else { by_number };
            first.then_with(|| (a.pid, a.id).cmp(&(b.pid, b.id)))
        });
        self.turned(rows)
    }

    /// The same of processes.
    pub(crate) fn process_rows<'a>(&self, world: &'a World) -> Vec<&'a ProcessRow> {
        let text = |row: &ProcessRow| format!("{} {} {} {}", row.pid, row.kind, row.program, row.bound);
        let mut rows: Vec<_> = world.processes.iter().filter(|row| self.lets_through(&text(row))).collect();
        let number = |row: &ProcessRow| match self.sort {
            Sort::Wire => row.rates.wire(),
            Sort::Ratio => row.rates.ratio(),
            Sort::Cpu => row.rates.cpu,
            Sort::Age => row.age_s,
            Sort::Goodput | Sort::Name => row.rates.goodput(),
        };
        rows.sort_by(|a, b| {
            let by_number = number(b).total_cmp(&number(a));
            let first = if self.sort == Sort::Name { a.program.cmp(&b.program) } else { by_number };
            first.then_with(|| a.pid.cmp(&b.pid))
        });
        self.turned(rows)
    }

    fn turned<T>(&self, mut rows: Vec<T>) -> Vec<T> {
        if self.reverse {
            rows.reverse();
        }
        rows
    }

    fn lets_through(&self, text: &str) -> bool {
        // Case matters only if the filter has capitals, as in `less` and editors.
        let exact = self.filter.chars().any(char::is_uppercase);
        if exact { text.contains(&self.filter) } else { text.to_lowercase().contains(&self.filter) }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::top::world::Rates;

    pub(in crate::top) fn view() -> View {
        View {
            sort: Sort::Goodput,
            reverse: false,
            filter: String::new(),
            typing: false,
            processes: false,
            help: false,
            paused: false,
            interval_s: 1.0,
            top: 0,
        }
    }

    fn world() -> World {
        let row = |id, name: &str, out_raw, age_s| FlowRow {
            id,
            name: name.into(),
            rates: Rates { out_raw, out_wire: 1.0, ..Rates::default() },
            age_s,
            ..FlowRow::default()
        };
        World {
            flows: vec![row(1, "b > DB", 5.0, 1.0), row(2, "a > web", 9.0, 3.0), row(3, "c", 0.0, 2.0)],
            ..World::default()
        }
    }

    #[test]
    fn lines_are_sorted_and_filtered() {
        let (mut view, world) = (view(), world());
        let ids = |view: &View| view.flows(&world).iter().map(|row| row.id).collect::<Vec<_>>();
        assert_eq!(ids(&view), [2, 1, 3]);
        view.press(Key::Char('a'), 5);
        assert_eq!(ids(&view), [2, 3, 1]);
        view.press(Key::Char('n'), 5);
        view.press(Key::Char('R'), 5);
        assert_eq!(ids(&view), [3, 1, 2]);
        for key in [Key::Char('/'), Key::Char('d'), Key::Char('x'), Key::Backspace, Key::Char('b'), Key::Enter] {
            view.press(key, 5);
        }
        assert_eq!((ids(&view), view.filter.as_str()), (vec![1], "db"));
        view.filter = "Db".into();
        assert!(ids(&view).is_empty());
        assert_eq!(view.press(Key::Escape, 5), Next::Draw);
        assert_eq!((ids(&view).len(), view.press(Key::Escape, 5)), (3, Next::Quit));
    }

    #[test]
    fn a_key_that_is_typed_is_no_command() {
        let mut view = view();
        view.press(Key::Char('/'), 5);
        assert_eq!(view.press(Key::Char('q'), 5), Next::Draw);
        for _ in 0..200 {
            view.press(Key::Char('ä'), 5);
        }
        assert_eq!(view.filter.chars().count(), FILTER_MAX);
        view.press(Key::Escape, 5);
        assert!(view.filter.is_empty());
        assert_eq!(view.press(Key::Char('q'), 5), Next::Quit);
    }

    #[test]
    fn help_goes_with_any_key_and_the_interval_has_bounds() {
        let mut view = view();
        view.press(Key::Char('?'), 5);
        assert!(view.help);
        view.press(Key::Tab, 5);
        assert!(!view.help && !view.processes);
        for _ in 0..20 {
            view.press(Key::Char('+'), 5);
        }
        assert_eq!(view.interval_s, INTERVAL_MIN);
        for _ in 0..20 {
            view.press(Key::Char('-'), 5);
        }
        assert_eq!(view.interval_s, INTERVAL_MAX);
        assert_eq!(view.press(Key::Char('z'), 5), Next::Nothing);
    }
}
