//! What of the host's files no guest sees unless it is told to: the host's secrets, its identity, its state.
//!
//! The list is data: `--from host` leaves these out of the copy, `run` masks them over the live root. It errs on the
//! side of hiding, since a guest's root reads what the host's root reads, and a guest may belong to anyone. `--expose
//! PATH` shows a path again; of two that apply the longer one wins, so `--expose /root` shows `/root` but not
//! `/root/.ssh`.

/// How a hidden path appears to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// A directory stays with its mode and owner, and is empty; a file stays and is empty.
    Hollow,
    /// Directories stay, and the directories in them, since services expect theirs; files do not.
    Skeleton,
    /// The path is not there in the guest.
    Absent,
    /// A file of passwords: every account stays, locked.
    Locked,
}

/// A hidden path of the host. The pattern is absolute; in each of its names one `*` stands for any bytes but `/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Secret {
    /// The paths that are meant: absolute, with wildcards.
    pub pattern: &'static str,
    /// What the guest sees in their place.
    pub treatment: Treatment,
}

/// The paths that the source `host` leaves out.
pub fn secrets() -> &'static [Secret] {
    SECRETS
}

/// What lies in someone's home and opens doors elsewhere. For every home in /etc/passwd, wherever it is.
pub(super) const IN_A_HOME: &[&str] = &[
    ".aws",
    ".azure",
    ".bash_history",
    ".cargo/credentials*",
    ".config/containers/auth.json",
    ".config/gcloud",
    ".config/gh",
    ".config/rclone",
    ".docker/config.json",
    ".git-credentials",
    ".gnupg",
    ".kube",
    ".local/share/keyrings",
    ".lesshst",
    ".mozilla",
    ".my.cnf",
    ".netrc",
    ".npmrc",
    ".password-store",
    ".pgpass",
    ".pypirc",
    ".python_history",
    ".s3cfg",
    ".ssh",
    ".vault-token",
    ".viminfo",
    ".zsh_history",
];

const fn hollow(pattern: &'static str) -> Secret {
    Secret { pattern, treatment: Treatment::Hollow }
}

const fn skeleton(pattern: &'static str) -> Secret {
    Secret { pattern, treatment: Treatment::Skeleton }
}

const fn absent(pattern: &'static str) -> Secret {
    Secret { pattern, treatment: Treatment::Absent }
}

const fn locked(pattern: &'static str) -> Secret {
    Secret { pattern, treatment: Treatment::Locked }
}

const SECRETS: &[Secret] = &[
    // Homes, and what is only for now or only from outside.
    hollow("/root"),
    hollow("/home"),
    hollow("/tmp"),
    hollow("/var/tmp"),
    hollow("/run"),
    hollow("/mnt"),
    hollow("/media"),
    absent("/lost+found"),
    // What people and services put there to run: applications with their settings, sites, data.
    hollow("/opt"),
    hollow("/srv"),
    hollow("/var/www"),
    hollow("/var/opt"),
    hollow("/var/local"),
    hollow("/usr/local/www"),
    hollow("/usr/share/nginx/html"),
    // Passwords. The copies that tools leave beside them count as well.
    locked("/etc/shadow"),
    locked("/etc/gshadow"),
    absent("/etc/shadow*"),
    absent("/etc/gshadow*"),
    absent("/etc/security/opasswd"),
    hollow("/var/backups"),
    // Keys that say "I am this host", and keys to its disks.
    absent("/etc/ssh/*_key"),
    hollow("/etc/ssl/private"),
    hollow("/etc/pki/tls/private"),
    hollow("/etc/letsencrypt"),
    hollow("/var/lib/acme"),
    absent("/etc/*.keytab"),
    absent("/etc/krb5.keytab*"),
    hollow("/etc/ipsec.d/private"),
    absent("/etc/ipsec.secrets"),
    hollow("/etc/swanctl/private"),
    hollow("/etc/wireguard"),
    hollow("/etc/openvpn"),
    hollow("/etc/tinc"),
    hollow("/var/lib/tailscale"),
    hollow("/var/lib/zerotier-one"),
    hollow("/var/lib/tor"),
    hollow("/etc/credstore"),
    hollow("/etc/credstore.encrypted"),
    hollow("/etc/cryptsetup-keys.d"),
    hollow("/etc/luks"),
    absent("/etc/crypttab"),
    absent("/var/lib/systemd/credential.secret"),
    absent("/etc/apt/auth.conf"),
    hollow("/etc/apt/auth.conf.d"),
    // Which machine this is, its shims and its disks. A guest with its own init must not mount the host's disks.
    hollow("/etc/machine-id"),
    absent("/var/lib/dbus/machine-id"),
    absent("/var/lib/systemd/random-seed"),
    absent("/boot/loader/random-seed"),
    absent("/boot/efi/loader/random-seed"),
    hollow("/etc/fstab"),
    absent("/etc/hostid"),
    hollow("/etc/iscsi"),
    absent("/swapfile"),
    absent("/swap.img"),
    hollow("/var/lib/cloud"),
    hollow("/var/lib/waagent"),
    hollow("/var/lib/amazon"),
    // Networks.
    hollow("/etc/NetworkManager/system-connections"),
    hollow("/var/lib/NetworkManager"),
    hollow("/etc/netplan"),
    hollow("/etc/wpa_supplicant"),
    hollow("/var/lib/iwd"),
    hollow("/var/lib/bluetooth"),
    absent("/etc/ppp/*-secrets"),
    // Passwords of services, in their settings.
    absent("/etc/sssd/sssd.conf"),
    hollow("/var/lib/sss"),
    absent("/etc/ldap.secret"),
    absent("/etc/pam_ldap.secret"),
    absent("/etc/libnss-ldap.secret"),
    absent("/etc/mysql/debian.cnf"),
    absent("/etc/postfix/sasl_passwd*"),
    absent("/etc/exim4/passwd.client"),
    absent("/etc/msmtprc"),
    absent("/etc/davfs2/secrets"),
    absent("/etc/samba/*cred*"),
    absent("/etc/cifs*"),
    absent("/etc/docker/key.json"),
    absent("/etc/containers/auth.json"),
    hollow("/etc/kubernetes"),
    hollow("/etc/rancher"),
    hollow("/etc/salt/pki"),
    hollow("/etc/puppetlabs/puppet/ssl"),
    hollow("/var/lib/puppet/ssl"),
    hollow("/etc/chef"),
    hollow("/etc/vault.d"),
    // Other guests, containers and machines.
    hollow("/var/lib/pando"),
    hollow("/etc/pando"),
    hollow("/var/lib/docker"),
    hollow("/var/lib/containers"),
    hollow("/var/lib/containerd"),
    hollow("/var/lib/kubelet"),
    hollow("/var/lib/rancher"),
    hollow("/var/lib/etcd"),
    hollow("/var/lib/lxc"),
    hollow("/var/lib/lxd"),
    hollow("/var/lib/incus"),
    hollow("/var/snap"),
    hollow("/var/lib/machines"),
    hollow("/var/lib/libvirt"),
    hollow("/var/lib/vz"),
    // What people and services keep here.
    hollow("/var/mail"),
    hollow("/var/spool/mail"),
    skeleton("/var/spool"),
    skeleton("/var/log"),
    hollow("/var/crash"),
    hollow("/var/lib/systemd/coredump"),
    hollow("/var/lib/private"),
    hollow("/var/lib/samba/private"),
    hollow("/var/lib/krb5kdc"),
    hollow("/var/lib/caddy"),
    hollow("/var/lib/ceph"),
    hollow("/var/lib/clickhouse"),
    hollow("/var/lib/couchdb"),
    hollow("/var/lib/elasticsearch"),
    hollow("/var/lib/gitea"),
    hollow("/var/lib/gitlab-runner"),
    hollow("/var/lib/grafana"),
    hollow("/var/lib/mariadb"),
    hollow("/var/lib/minio"),
    hollow("/var/lib/neo4j"),
    hollow("/var/lib/nextcloud"),
    hollow("/var/lib/opensearch"),
    hollow("/var/lib/prometheus"),
    hollow("/var/lib/cassandra"),
    hollow("/var/lib/valkey"),
    hollow("/var/lib/cyrus"),
    hollow("/var/lib/dovecot"),
    hollow("/var/vmail"),
    hollow("/var/lib/ldap"),
    hollow("/var/lib/mysql"),
    hollow("/var/lib/postgresql"),
    hollow("/var/lib/pgsql"),
    hollow("/var/lib/mongodb"),
    hollow("/var/lib/redis"),
    hollow("/var/lib/influxdb"),
    hollow("/var/lib/rabbitmq"),
    hollow("/var/lib/vault"),
    hollow("/var/lib/jenkins"),
    hollow("/var/opt/gitlab"),
    hollow("/etc/gitlab"),
    hollow("/etc/gitlab-runner"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_is_absolute_and_has_at_most_one_star_a_name() {
        for secret in secrets() {
            assert!(secret.pattern.starts_with('/') && !secret.pattern.ends_with('/'), "{}", secret.pattern);
            for name in secret.pattern[1..].split('/') {
                assert!(!name.is_empty() && name.matches('*').count() <= 2, "{}", secret.pattern);
            }
        }
    }
}
