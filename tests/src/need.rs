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

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}
