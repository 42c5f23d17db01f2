//! What a test needs of the machine.

/// Something that a machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// To be root.
    Root,
    /// A program in the PATH, and the package that brings it.
    Program(&'static str, &'static str),
    /// A kernel of this version or newer.
    Linux(u32, u32),
    /// A kind of network device, and what ip(8) has to be told of it besides its name; `probe0` is there.
    Device(&'static str, &'static str),
    /// The emulated machine of tests/vm: what the test does could bring a machine down that others use.
    Emulated,
    /// BPF iterators over the threads of one process, and leave to load them.
    TaskIterator,
    /// libpando, built beside the command.
    Library,
}

impl Need {
    /// Whether it is there; if not, why the test is skipped.
    pub(crate) fn check(self) -> Result<(), String> {
        match self {
            Self::Root if rustix::process::geteuid().is_root() => Ok(()),
            Self::Root => Err("it needs root".to_owned()),
            Self::Program(name, _) if in_path(name) => Ok(()),
            Self::Linux(major, minor) if release() >= (major, minor) => Ok(()),
            Self::Linux(major, minor) => Err(format!("it needs Linux {major}.{minor}")),
            Self::Emulated if booted_by_the_harness() => Ok(()),
            Self::Emulated => Err("it needs the emulated machine: ./x test slow boots one for it".to_owned()),
            Self::TaskIterator => pando_freeze::TaskIterator::load().map(drop).map_err(|error| {
                format!("it needs BPF iterators over one process, which this machine does not grant: {error}")
            }),
            Self::Library if crate::area::capi::library().is_some() => Ok(()),
            Self::Library => Err("it needs libpando: ./x test builds it, as x.d/library does".to_owned()),
            Self::Device(kind, words) if makes(kind, words) => Ok(()),
            Self::Device(kind, _) => {
                Err(format!("it needs network devices of kind {kind}, which this kernel or ip(8) does not know"))
            }
            Self::Program(name, package) => Err(format!("it needs {name}, of the package {package}")),
        }
    }
}

/// The running kernel's version, as far as it counts.
fn release() -> (u32, u32) {
    let uname = rustix::system::uname();
    let text = uname.release().to_string_lossy().into_owned();
    let mut numbers = text.split(|letter: char| !letter.is_ascii_digit()).map(|word| word.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether tests/vm/run booted this machine: it says so on the kernel's command line.
fn booted_by_the_harness() -> bool {
    std::fs::read_to_string("/proc/cmdline").is_ok_and(|line| line.contains("pando.timeout="))
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Whether a device of a kind can be made, in a network namespace that goes at once.
fn makes(kind: &str, words: &str) -> bool {
    let script = format!("ip link add probe0 type veth && ip link add {words}name probe1 type {kind}");
    let tried = std::process::Command::new("unshare").args(["--net", "sh", "-c", &script]).output();
    tried.is_ok_and(|output| output.status.success())
}
