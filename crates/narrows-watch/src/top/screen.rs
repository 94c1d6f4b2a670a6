//! The terminal: raw mode and the alternate screen, which are left however the program ends.

use std::io::{self, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};
use crossterm::style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, DisableLineWrap, EnableLineWrap, EndSynchronizedUpdate,
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};

use super::frame::{Line, Style};
use super::view::Key;

/// Smallest terminal that is drawn for; smaller ones are cut.
const COLUMNS_MIN: usize = 20;
const LINES_MIN: usize = 4;

/// The screen is held, so leaving the program has to give it back.
static HELD: AtomicBool = AtomicBool::new(false);

/// The terminal while `top` has it.
pub(crate) struct Screen {
    colours: bool,
}

/// What a person did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    Key(Key),
    /// Ctrl-C, which raw mode does not turn into a signal.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
    Resize,
}

impl Screen {
    /// Takes the terminal. `colours`: NO_COLOR is not set.
    pub(crate) fn take(colours: bool) -> io::Result<Self> {
        static PANIC: Once = Once::new();
        PANIC.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                // First, or the message would be on a screen that goes away.
                give_back();
                before(info);
            }));
        });
        enter()?;
        Ok(Self { colours })
    }

    /// Columns and lines.
    pub(crate) fn size(&self) -> (usize, usize) {
        let (columns, lines) = size().unwrap_or((80, 24));
        (usize::from(columns).max(COLUMNS_MIN), usize::from(lines).max(LINES_MIN))
    }

    /// Waits for input; `None`: nothing in that time.
    pub(crate) fn input(&self, patience: Duration) -> io::Result<Option<Input>> {
        if !poll(patience)? {
            return Ok(None);
        }
        Ok(match read()? {
            Event::Resize(..) => Some(Input::Resize),
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Char('c') if control => Some(Input::Interrupt),
                    KeyCode::Char('z') if control => Some(Input::Suspend),
                    KeyCode::Char('l') if control => Some(Input::Resize),
                    code => key_of(code).filter(|_| !control).map(Input::Key),
                }
            }
            _ => None,
        })
    }

    /// Shows a frame.
    pub(crate) fn show(&self, lines: &[Line]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        queue!(out, BeginSynchronizedUpdate)?;
        for (row, line) in lines.iter().enumerate() {
            // Before the text: after a full line it would take the last column.
            queue!(out, MoveTo(0, row as u16), Clear(ClearType::UntilNewLine))?;
            for (style, text) in &line.0 {
                self.put(&mut out, *style, text)?;
            }
        }
        if lines.len() < self.size().1 {
            queue!(out, MoveTo(0, lines.len() as u16), Clear(ClearType::FromCursorDown))?;
        }
        queue!(out, EndSynchronizedUpdate)?;
        out.flush()
    }

    fn put(&self, out: &mut impl Write, style: Style, text: &str) -> io::Result<()> {
        let (attributes, colour): (&[Attribute], _) = match style {
            Style::Plain => (&[], None),
            Style::Bold => (&[Attribute::Bold], None),
            Style::Dim => (&[Attribute::Dim], None),
            Style::Head => (&[Attribute::Reverse], None),
            Style::Sorted => (&[Attribute::Reverse, Attribute::Bold], None),
            Style::Graph => (&[], Some(Color::Cyan)),
            Style::Alert => (&[Attribute::Bold], Some(Color::Yellow)),
        };
        for attribute in attributes {
            queue!(out, SetAttribute(*attribute))?;
        }
        if let Some(colour) = colour.filter(|_| self.colours) {
            queue!(out, SetForegroundColor(colour))?;
        }
        queue!(out, Print(text), SetAttribute(Attribute::Reset))?;
        if colour.is_some() && self.colours {
            queue!(out, ResetColor)?;
        }
        Ok(())
    }

    /// Gives the terminal back while `meanwhile` runs.
    pub(crate) fn lend(&self, meanwhile: impl FnOnce()) -> io::Result<()> {
        give_back();
        meanwhile();
        enter()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    HELD.store(true, Ordering::SeqCst);
    let entered = execute!(io::stdout(), EnterAlternateScreen, Hide, DisableLineWrap, Clear(ClearType::All));
    if entered.is_err() {
        give_back();
    }
    entered
}

/// Gives the terminal back, once.
fn give_back() {
    if HELD.swap(false, Ordering::SeqCst) {
        // As much as is possible: the terminal may be gone.
        let _ = execute!(io::stdout(), SetAttribute(Attribute::Reset), EnableLineWrap, Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

fn key_of(code: KeyCode) -> Option<Key> {
    Some(match code {
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Tab | KeyCode::BackTab => Key::Tab,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        _ => return None,
    })
}
