//! The options of `run` and `create` that grant and limit resources.
//!
//! Their words go to the daemon as they are: it knows the machine, and what is promised to others.

use pando_api::{Amount, Spec};
use pando_limit::{Limits, Machine};

/// What a guest is granted, or kept from.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Resources")]
pub(crate) struct ResourceOptions {
    /// Guarantee a part of the machine's processors, such as 25%; without --cpu-share it is an upper bound too
    #[arg(long, value_name = "PERCENT")]
    cpu_reserve: Option<String>,
    /// The weight in processor time that is not reserved or not used [default: 100]
    #[arg(long, value_name = "N")]
    cpu_share: Option<String>,
    /// The most processor time, in processors, such as 1.5
    #[arg(long, value_name = "N")]
    cpu_limit: Option<String>,
    /// The processors that may be used, by their numbers, such as 0-1; how many (docker's --cpus) is --cpu-limit
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// The most memory, page cache included, such as 512M
    #[arg(short, long, value_name = "SIZE")]
    memory: Option<String>,
    /// Memory that is not taken away while it is used
    #[arg(long, value_name = "SIZE")]
    memory_reserve: Option<String>,
    /// The most in swap; 0 for none, and as much as --memory where nothing is said
    #[arg(long, value_name = "SIZE")]
    swap: Option<String>,
    /// The most memory that one process may lock
    #[arg(long, value_name = "SIZE")]
    memory_locked: Option<String>,
    /// The most private writable memory of one process
    #[arg(long, value_name = "SIZE")]
    memory_anonymous: Option<String>,
    /// The largest address space of one process
    #[arg(long, value_name = "SIZE")]
    memory_virtual: Option<String>,
    /// The most System V shared memory
    #[arg(long, value_name = "SIZE")]
    sysv_shm: Option<String>,
    /// The size of /dev/shm
    #[arg(long, value_name = "SIZE")]
    shm_size: Option<String>,
    /// The most processes and threads
    #[arg(long, alias = "pids-limit", value_name = "N")]
    pids: Option<String>,
    /// The most files that one process may have open
    #[arg(long, value_name = "N")]
    files: Option<String>,
    /// The most files that all processes together may have open
    #[arg(long, value_name = "N")]
    files_total: Option<String>,
    /// The weight among guests that wait for the disk, 1 to 1000 [default: 100]
    #[arg(long, value_name = "N")]
    io_weight: Option<String>,
    /// The most bytes read from the disk a second, such as 10M
    #[arg(long, value_name = "SIZE")]
    io_read: Option<String>,
    /// The most bytes written to the disk a second
    #[arg(long, value_name = "SIZE")]
    io_write: Option<String>,
    /// The most reads a second
    #[arg(long, value_name = "N")]
    io_read_ops: Option<String>,
    /// The most writes a second
    #[arg(long, value_name = "N")]
    io_write_ops: Option<String>,
    /// Guarantee what leaves by the network, such as 10mbit; without --net-share it is an upper bound too
    #[arg(long, value_name = "RATE")]
    net_reserve: Option<String>,
    /// The weight in bandwidth that is not reserved or not used, 1 to 1000 [default: 100]
    #[arg(long, value_name = "N")]
    net_share: Option<String>,
    /// The most that leaves by the network, such as 50mbit
    #[arg(long, value_name = "RATE")]
    net_limit: Option<String>,
    /// The most that comes in by the network; what is more is dropped
    #[arg(long, value_name = "RATE")]
    net_limit_in: Option<String>,
    /// Room for the guest's own files, such as 2G
    #[arg(long, value_name = "SIZE")]
    disk: Option<String>,
    /// The most files and directories of the guest's own, such as 200k
    #[arg(long, value_name = "N")]
    inodes: Option<String>,
}

impl ResourceOptions {
    /// Puts what was given into a spec.
    pub(crate) fn lay_over(self, spec: &mut Spec) {
        let Spec { cpu, memory, io, disk, net, pids, files, files_total, .. } = spec;
        for (field, given) in [
            (&mut cpu.reserve, self.cpu_reserve),
            (&mut cpu.share, self.cpu_share),
            (&mut cpu.limit, self.cpu_limit),
            (&mut cpu.cpus, self.cpus),
            (&mut memory.limit, self.memory),
            (&mut memory.reserve, self.memory_reserve),
            (&mut memory.swap, self.swap),
            (&mut memory.locked, self.memory_locked),
            (&mut memory.anonymous, self.memory_anonymous),
            (&mut memory.virtual_size, self.memory_virtual),
            (&mut memory.sysv, self.sysv_shm),
            (&mut memory.shm, self.shm_size),
            (pids, self.pids),
            (files, self.files),
            (files_total, self.files_total),
            (&mut io.weight, self.io_weight),
            (&mut io.read_rate, self.io_read),
            (&mut io.write_rate, self.io_write),
            (&mut io.read_ops, self.io_read_ops),
            (&mut io.write_ops, self.io_write_ops),
            (&mut net.reserve, self.net_reserve),
            (&mut net.share, self.net_share),
            (&mut net.limit, self.net_limit),
            (&mut net.limit_in, self.net_limit_in),
            (&mut disk.size, self.disk),
            (&mut disk.inodes, self.inodes),
        ] {
            if let Some(text) = given {
                *field = Some(Amount(text));
            }
        }
    }
}

/// Says on standard error which limits of a spec will not be as they seem. What is wrong with them the daemon tells.
pub(crate) fn warn(spec: &Spec) {
    let warnings = Limits::read(spec.requests()).and_then(|limits| Machine::look().bears(&limits));
    for warning in warnings.unwrap_or_default() {
        eprintln!("pando: warning: {warning}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, FromArgMatches};

    #[test]
    fn every_option_reaches_a_field_of_its_own() {
        let command = ResourceOptions::augment_args(clap::Command::new("run").no_binary_name(true));
        let names: Vec<String> =
            command.get_arguments().filter_map(|argument| Some(format!("--{}", argument.get_long()?))).collect();
        let words = names.iter().enumerate().flat_map(|(number, name)| [name.clone(), number.to_string()]);
        let options = ResourceOptions::from_arg_matches(&command.try_get_matches_from(words).unwrap()).unwrap();
        let mut spec = Spec::default();
        options.lay_over(&mut spec);
        let requests = spec.requests().into_iter().chain(spec.net.pairs());
        let mut found: Vec<usize> = requests.map(|(_, text)| text.parse().unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, (0..names.len()).collect::<Vec<_>>());
    }
}
