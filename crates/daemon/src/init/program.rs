//! What a process is to run, before its user is looked up.

use crate::failure;
use crate::init::standard_streams;
use pando_api::{Fault, PartOf, Process};
use pando_guest::account::Account;
use pando_guest::plan::{Program, Stdio};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// What a guest is to run, before its user is looked up.
#[derive(Clone, Debug)]
pub(crate) struct ProgramRequest {
    pub(crate) command: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) workdir: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) stdio: Stdio,
    /// The program, if it does not lie in the guest's files.
    pub(crate) program: Option<Rc<OwnedFd>>,
    /// The transaction that it is part of.
    pub(crate) transaction: Option<PartOf>,
}

impl ProgramRequest {
    /// The program of this request, run by `account`.
    pub(crate) fn program(&self, account: Account) -> Program {
        Program {
            command: self.command.clone(),
            env: self.env.clone(),
            workdir: self.workdir.clone(),
            account,
            stdio: self.stdio,
            sent_along: self.program.is_some(),
        }
    }
}

/// What a client asked for, and the descriptors that it must have sent along.
pub(crate) fn program_request(process: Process, stdio: &[OwnedFd]) -> Result<ProgramRequest, Fault> {
    if process.detached && process.terminal {
        return Err(failure::bad("process", "a process is detached or has a terminal: somebody has to keep that open"));
    }
    let supervised = process.transaction.as_ref().is_some_and(|transaction| transaction.supervised);
    let own = match (process.detached, process.terminal) {
        (true, _) => 0,
        (_, true) => 1,
        _ => 3,
    };
    let expected = own + usize::from(supervised);
    if stdio.len() != expected {
        let message = format!("the call must carry {expected} file descriptors beside it, and carried {}", stdio.len());
        return Err(failure::bad("process", message));
    }
    for (number, fd) in stdio.iter().enumerate() {
        let kind = rustix::fs::fstat(fd).map(|found| rustix::fs::FileType::from_raw_mode(found.st_mode));
        if kind.is_ok_and(|kind| kind.is_dir()) {
            let message = format!(
                "standard descriptor {number} is a directory, through which the guest could leave its root; redirect it"
            );
            return Err(failure::bad("process", message));
        }
    }
    let stdio = if process.terminal {
        Stdio::Terminal { rows: process.rows, columns: process.columns }
    } else {
        standard_streams::open_by_name(&stdio[..own]);
        Stdio::Given
    };
    Ok(ProgramRequest {
        command: process.command,
        env: process.env,
        workdir: process.workdir,
        user: process.user,
        stdio,
        program: None,
        transaction: process.transaction,
    })
}
