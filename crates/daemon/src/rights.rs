//! Who may offer which service, and who may call it.
//!
//! ```text
//! offer metadata exe:/usr/bin/mds; call metadata uid:1000 self; call * nobody
//! ```
//!
//! Rules are separated by `;`: what, the service (its name, its number, or `*`), and who. A service that has a
//! rule of its own is not concerned by `*`; what no rule is about is everybody's. Calls are judged by the daemon
//! of the caller, which alone knows what a process runs, so all daemons of a job need the same rules. The daemon
//! that guards a service judges calls of other nodes by the user that the daemon there names, and refuses those
//! that come without one.

use std::{fs, path::PathBuf};

use client::{message::DAEMON, name::service_number};
use rustix::process::geteuid;

/// A set of processes, as a rule names it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Who {
    Uid(u32),
    Pid(u32),
    /// Processes that run this file.
    Exe(PathBuf),
    Everybody,
}

/// What a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Offering the service as a provider.
    Offer,
    /// Calling the service.
    Call,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    act: Act,
    /// `None`: those without a rule of their own.
    service: Option<u16>,
    who: Vec<Who>,
}

/// Rules that say who may offer and call which services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights(Vec<Rule>);

/// Rules that make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rights: `{rule}`: {why}; write for example `offer metadata uid:1000; call 17 self exe:/usr/bin/app`"
)]
pub struct RightsError {
    /// The rule.
    rule: String,
    /// What is wrong with it.
    why: &'static str,
}

impl Rights {
    /// Reads rules.
    ///
    /// # Errors
    ///
    /// [`RightsError`]: the first rule that makes no sense.
    pub fn parse(text: &str) -> Result<Self, RightsError> {
        let rules = text.split(';').map(str::trim).filter(|rule| !rule.is_empty());
        let parsed = rules
            .map(|rule| parse_rule(rule).map_err(|why| RightsError { rule: rule.to_owned(), why }));
        parsed.collect::<Result<_, _>>().map(Self)
    }

    /// Whether not everybody may.
    #[inline]
    pub(crate) fn is_limited(&self, act: Act, service: u16) -> bool {
        !self.0.is_empty() && service != DAEMON && self.rules(act, service).next().is_some()
    }

    /// Whether a process may.
    pub(crate) fn allows(
        &self,
        act: Act,
        service: u16,
        process: Option<ipc::ClientProcess>,
    ) -> bool {
        let is_it = |who: &Who| match (who, process) {
            (Who::Everybody, _) => true,
            (_, None) => false,
            (Who::Uid(uid), Some(process)) => *uid == process.uid,
            (Who::Pid(pid), Some(process)) => *pid == process.pid && *pid != 0,
            (Who::Exe(path), Some(process)) => runs(process.pid, path),
        };
        self.judge(act, service, is_it)
    }

    /// Whether another daemon may have let a caller of its node through.
    pub(crate) fn may_allow(&self, service: u16, uid: u32) -> bool {
        // What a process of another node runs, only the daemon there can tell.
        let may_be = |who: &Who| match who {
            Who::Uid(known) => *known == uid,
            Who::Pid(_) | Who::Exe(_) | Who::Everybody => true,
        };
        self.judge(Act::Call, service, may_be)
    }

    fn judge(&self, act: Act, service: u16, is_it: impl Fn(&Who) -> bool) -> bool {
        let mut rules = self.rules(act, service).peekable();
        rules.peek().is_none() || rules.any(|rule| rule.who.iter().any(&is_it))
    }

    /// The rules about a service: its own, or those about the others.
    fn rules(&self, act: Act, service: u16) -> impl Iterator<Item = &Rule> {
        let is_own = |rule: &&Rule| rule.act == act && rule.service == Some(service);
        let has_own = self.0.iter().any(|rule| is_own(&rule));
        let wanted = has_own.then_some(service);
        self.0.iter().filter(move |rule| rule.act == act && rule.service == wanted)
    }
}

fn parse_rule(rule: &str) -> Result<Rule, &'static str> {
    let mut words = rule.split_whitespace();
    let act = match words.next() {
        Some("offer") => Act::Offer,
        Some("call") => Act::Call,
        _ => return Err("it begins with neither `offer` nor `call`"),
    };
    let service = match words.next() {
        None => return Err("it names no service"),
        Some("*") => None,
        Some(word) => match word.parse() {
            Ok(DAEMON) => {
                return Err("service 0 is the daemon itself, which every process may call");
            }
            Ok(number) => Some(number),
            Err(_) if word.bytes().all(|byte| byte.is_ascii_digit()) => {
                return Err("a service has a number up to 65535");
            }
            Err(_) => Some(service_number(word)),
        },
    };
    let who: Vec<_> = words.map(parse_who).collect::<Result<Vec<_>, _>>()?;
    if who.is_empty() {
        return Err("it names no parties; `nobody` is a word");
    }
    Ok(Rule { act, service, who: who.into_iter().flatten().collect() })
}

fn parse_who(word: &str) -> Result<Option<Who>, &'static str> {
    let number = |text: &str| text.parse().map_err(|_| "uid: and pid: take a number");
    Ok(Some(match word {
        "*" => Who::Everybody,
        "nobody" => return Ok(None),
        "self" => Who::Uid(geteuid().as_raw()),
        _ => match word.split_once(':') {
            Some(("uid", uid)) => Who::Uid(number(uid)?),
            Some(("pid", pid)) => Who::Pid(number(pid)?),
            Some(("exe", path)) if path.starts_with('/') => Who::Exe(path.into()),
            Some(("exe", _)) => return Err("exe: takes an absolute path"),
            _ => return Err("a party is `self`, `*`, `nobody`, uid:N, pid:N or exe:PATH"),
        },
    }))
}

/// Whether a process runs a file. One that the kernel does not tell of runs none.
fn runs(pid: u32, path: &PathBuf) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == *path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(uid: u32, pid: u32) -> Option<ipc::ClientProcess> {
        Some(ipc::ClientProcess { uid, pid })
    }

    #[test]
    fn a_service_has_its_own_rules_or_those_of_the_others_or_none() {
        let rights = Rights::parse(
            " offer 17 uid:7 pid:99; call 17 uid:8;call named uid:9; call * nobody; call 18 *",
        );
        let rights = rights.unwrap();
        let may = |act, service, who| rights.allows(act, service, who);
        assert!(may(Act::Offer, 17, process(7, 1)) && may(Act::Offer, 17, process(1, 99)));
        assert!(!may(Act::Offer, 17, process(8, 1)) && !may(Act::Offer, 17, None));
        assert!(may(Act::Offer, 16, None), "no rule is about that");
        assert!(may(Act::Call, 17, process(8, 1)) && !may(Act::Call, 17, process(7, 1)));
        let named = service_number("named");
        assert!(may(Act::Call, named, process(9, 1)) && !may(Act::Call, named, process(8, 1)));
        assert!(!may(Act::Call, 5, process(0, 1)) && may(Act::Call, 18, None));
        assert!(rights.is_limited(Act::Call, 5) && !rights.is_limited(Act::Offer, 5));
        assert!(!rights.is_limited(Act::Call, DAEMON), "every process may ping");
        assert!(rights.may_allow(17, 8) && !rights.may_allow(17, 7));
        assert_eq!(Rights::parse("").unwrap(), Rights::default());
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads /proc")]
    fn a_process_is_known_by_what_it_runs() {
        let exe = std::env::current_exe().unwrap();
        let rights = Rights::parse(&format!("offer 1 exe:{}", exe.display())).unwrap();
        assert!(rights.allows(Act::Offer, 1, process(1, std::process::id())));
        assert!(!rights.allows(Act::Offer, 1, process(1, u32::MAX)), "no such process");
        let other = Rights::parse("offer 1 exe:/nowhere").unwrap();
        assert!(!other.allows(Act::Offer, 1, process(1, std::process::id())));
        assert!(other.may_allow(1, 3), "offering is no call");
    }

    #[test]
    fn nonsense_is_refused_with_its_rule_and_what_is_wrong_with_it() {
        for (text, why) in [
            ("permit 17 *", "neither `offer` nor `call`"),
            ("offer", "names no service"),
            ("call 0 *", "the daemon itself"),
            ("call 65536 *", "up to 65535"),
            ("call 17", "names no parties"),
            ("call 17 uid:me", "take a number"),
            ("call 17 exe:app", "an absolute path"),
            ("offer 1 self; call 17 alice", "a party is"),
        ] {
            let error = Rights::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
