//! What the watchdog can do about a tenant.

/// A step against a tenant, or in its favour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<K> {
    /// Take so many bytes from it, to swap or to the disk.
    Reclaim(K, u64),
    /// Freeze it, and take all that it holds.
    Freeze(K),
    /// Let the guest go on.
    Thaw(K),
    /// End it, and begin it anew.
    Restart(K),
    /// Stop the guest for good.
    Stop(K),
}

impl<K> Step<K> {
    /// The step's name, as `pando watchdog` prints it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Reclaim(..) => "reclaim",
            Self::Freeze(_) => "freeze",
            Self::Thaw(_) => "thaw",
            Self::Restart(_) => "restart",
            Self::Stop(_) => "stop",
        }
    }

    /// Whether the guest notices more of it than that it is slower: whoever it belongs to is told before.
    pub fn is_grave(&self) -> bool {
        matches!(self, Self::Freeze(_) | Self::Restart(_) | Self::Stop(_))
    }

    /// The tenant that the step is taken against.
    pub fn whom(&self) -> &K {
        let (Self::Reclaim(key, _) | Self::Freeze(key) | Self::Thaw(key) | Self::Restart(key) | Self::Stop(key)) = self;
        key
    }
}
