//! The varlink server: one task a connection.

use crate::dispatch;
use crate::lifecycle::recover;
use crate::runtime::image_turns::{KINDS, MOST_AT_ONCE};
use crate::state::daemon::Daemon;
use pando_api::GuestState;
use pando_guest::Places;
use pando_guest::settings::Settings;
use pando_kernel::file::lock::FileLock;
use pando_kernel::file::trusted_directory::{Distrust, TrustedDirectory};
use pando_kernel::process::inheritance;
use pando_kernel::{CallError, Context};
use rustix::fs::{Mode, OFlags};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use zlink::Listener;

/// Why the daemon could not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another daemon serves this root already.
    #[error("another daemon serves {0} already; commands find it by themselves")]
    Already(String),
    /// The daemon lacks something that it cannot do without.
    #[error("starting the daemon failed: {0}")]
    Call(#[from] CallError),
    /// Somebody else can write to where its state lies.
    #[error(transparent)]
    Distrust(#[from] Distrust),
    /// The daemon's socket cannot be served.
    #[error("serving at {path} failed: {reason}")]
    Socket {
        /// The path of the socket.
        path: String,
        /// Why the socket cannot be served.
        reason: String,
    },
}

/// Threads for what takes its time, but for images that others send or take: those have some of their own.
const THREADS: usize = 16;

/// How often it is looked whether the socket's file is there.
const SOCKET_LOOK: Duration = Duration::from_secs(1);

/// How long a command may still be under way when the daemon ends.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How long guests that are just ending may take to be cleared away; the next daemon clears away what is left then.
const LAST_LIVES: Duration = Duration::from_secs(10);

/// How long images that are being written may take; less than a service manager waits before it kills.
const LAST_IMAGES: Duration = Duration::from_secs(60);

/// Serves until told to end. Guests that run go on.
///
/// # Errors
///
/// [`ServeError::Already`] where a daemon serves the same root.
pub fn serve(places: Places) -> Result<(), ServeError> {
    let run = TrustedDirectory::make(&places.run(), Mode::RWXU)?;
    TrustedDirectory::make(&places.state(), Mode::RWXU)?;
    // Others may have left something there before it was closed to them.
    run.holds_nothing_foreign()?;
    let lock = run.file("lock", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR | Mode::WUSR)?;
    let lock = FileLock::try_on(lock).context(|| format!("locking {}", run.path().join("lock").display()))?;
    let Some(_lock) = lock else { return Err(ServeError::Already(places.root().display().to_string())) };
    crate::runtime::descriptors::raise_limit();
    // Guests' processes inherit it, whoever's command it was that started the daemon.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    inheritance::begin_session_keyring().context(|| "beginning a session keyring".into())?;
    crate::runtime::walls::begin()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(THREADS + KINDS * MOST_AT_ONCE)
        .thread_keep_alive(Duration::from_secs(2))
        .build()
        .context(|| "starting the daemon's runtime".into())?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, main(places))?;
    // Threads that copy or delete are not waited for: what they leave half done is thrown away by the next daemon.
    runtime.shutdown_timeout(LAST_WORDS);
    Ok(())
}

async fn main(places: Places) -> Result<(), ServeError> {
    crate::runtime::walls::misbehave().await;
    let settings = Settings::read(&places);
    crate::settings::complain(&crate::settings::problems(&settings));
    let daemon = Daemon::new(places, settings)?;
    let heard = daemon.events.listen();
    tokio::task::spawn_local(crate::supervision::host_hooks::serve(Rc::clone(&daemon), heard));
    tokio::task::spawn_local(crate::lifecycle::supervisor::supervise(Rc::clone(&daemon)));
    recover::directories(&daemon.places)?;
    crate::state::state_disk::begin(&daemon.places);
    recover::load(&daemon)?;
    recover::adopt(&daemon).await?;
    tokio::task::spawn_local(crate::supervision::boot::start_wanted(Rc::clone(&daemon)));
    daemon.descriptors.refill();
    let path = daemon.places.socket();
    // The lock is held: a socket that lies there belongs to nobody.
    let _ = std::fs::remove_file(&path);
    let listener = listen(&path)?;
    tracing::info!(socket = %path.display(), pid = std::process::id(), "serving");
    begin_standing_work(&daemon);
    answer_clients(&daemon, listener, &path).await?;
    let _ = std::fs::remove_file(&path);
    close(&daemon).await;
    tracing::info!("ending; guests that run go on");
    Ok(())
}

/// Begins what goes on for as long as the daemon lives.
fn begin_standing_work(daemon: &Rc<Daemon>) {
    let sweeper = Rc::clone(daemon);
    tokio::task::spawn_local(async move { recover::sweep(&sweeper).await });
    tokio::task::spawn_local(crate::resources::governing::govern(Rc::clone(&daemon.resources)));
    tokio::task::spawn_local(crate::resources::watching::watch(Rc::clone(daemon)));
    tokio::task::spawn_local(crate::resources::page_sharing::share_pages(Rc::clone(daemon)));
    tokio::task::spawn_local(crate::resources::reclaiming::reclaim_from_idle(Rc::clone(daemon)));
    tokio::task::spawn_local(crate::resources::views::sample(Rc::clone(&daemon.resources)));
    tokio::task::spawn_local(crate::resources::open_files::govern(Rc::clone(&daemon.resources), daemon.events.clone()));
    tokio::task::spawn_local(crate::resources::metrics::serve(Rc::clone(daemon)));
    tokio::task::spawn_local(crate::resources::kills::tell_of_kills(Rc::clone(daemon)));
    tokio::task::spawn_local(crate::resources::accounting::keep_accounts(Rc::clone(daemon)));
    tokio::task::spawn_local(crate::store::image_garbage::watch(Rc::clone(daemon)));
    tokio::task::spawn_local(crate::logs::keep_bounded(Rc::clone(&daemon.logs)));
    tokio::task::spawn_local(crate::runtime::memory_trim::give_back(daemon.idle.clone()));
    tokio::task::spawn_local(crate::state::state_disk::watch(daemon.places.state(), daemon.events.clone()));
    tokio::task::spawn_local(crate::lifecycle::takeover::try_again(Rc::clone(daemon)));
    tokio::task::spawn_local(crate::warm::transaction_reserve::watch(Rc::clone(&daemon.transaction_reserve)));
}

/// Takes clients until the daemon is told to end.
async fn answer_clients(
    daemon: &Rc<Daemon>,
    mut listener: zlink::tokio::unix::Listener,
    path: &Path,
) -> Result<(), ServeError> {
    let mut terminate = signal(SignalKind::terminate()).context(|| "waiting for signals".into())?;
    let mut interrupt = signal(SignalKind::interrupt()).context(|| "waiting for signals".into())?;
    let mut looks = tokio::time::interval(SOCKET_LOOK);
    let mut hangup = signal(SignalKind::hangup()).context(|| "waiting for signals".into())?;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(Some(connection)) => drop(tokio::task::spawn_local(dispatch::converse(Rc::clone(daemon), connection))),
                Ok(None) => return Ok(()),
                // Whoever asks is answered with what was spared for that.
                Err(zlink::Error::Io(error)) if daemon.descriptors.give_up_for(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "accepting a client failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            _ = looks.tick() => if !path.exists() {
                // Somebody has removed it: without one nobody could reach this daemon, and no other can take its place.
                match listen(path) {
                    Ok(again) => listener = again,
                    Err(error) => tracing::error!(%error, "the socket was removed and cannot be made again"),
                }
            },
            () = daemon.quit.notified() => return Ok(()),
            _ = hangup.recv() => drop(crate::settings::reload(daemon)),
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
    }
}

/// Gives back what the daemon holds, once nobody can ask for anything any more.
async fn close(daemon: &Rc<Daemon>) {
    daemon.page_sharing.close();
    last_lives(daemon).await;
    last_images(daemon).await;
    daemon.standby_clones.close().await;
    daemon.roots.close().await;
    daemon.transaction_reserve.close().await;
    for (slot, shim) in daemon.pool.close().await {
        crate::runtime::process_end::wait_for(&shim).await;
        daemon.clear_slot(slot).await;
    }
    recover::sweep_empty_slots(daemon).await;
    daemon.networks.close().await;
    daemon.private.close().await;
    daemon.bandwidth.close();
    daemon.field.remove();
}

/// The socket that commands connect to.
fn listen(path: &Path) -> Result<zlink::tokio::unix::Listener, ServeError> {
    let socket = |reason: String| ServeError::Socket { path: path.display().to_string(), reason };
    let listener = zlink::tokio::unix::bind(path).map_err(|error| socket(error.to_string()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(|error| socket(error.to_string()))?;
    Ok(listener)
}

/// Waits for images that are being written to the disk: memory has them for no longer than this daemon lives.
async fn last_images(daemon: &Daemon) {
    const MOMENT: Duration = Duration::from_millis(5);
    let written = async {
        while daemon.keeping.get() > 0 {
            tokio::time::sleep(MOMENT).await;
        }
    };
    let _ = tokio::time::timeout(LAST_IMAGES, written).await;
}

/// Waits for guests that are ending: their clients know of the end already, and no other daemon may ever come to clear
/// away what they leave.
async fn last_lives(daemon: &Daemon) {
    const MOMENT: Duration = Duration::from_millis(2);
    let ending = || daemon.guests.borrow().values().any(|guest| guest.state.get() == GuestState::Stopping);
    let ended = async {
        while ending() {
            tokio::time::sleep(MOMENT).await;
        }
    };
    let _ = tokio::time::timeout(LAST_LIVES, ended).await;
}
