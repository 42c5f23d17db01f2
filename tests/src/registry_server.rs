//! A registry of a test's own, which answers as it is told to, and notes what it is asked for.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What it says to a request.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// A document or blob, and of which kind it is said to be.
    Found(&'static str, Vec<u8>),
    /// Zeros without end.
    Endless,
    /// Nothing more after its first byte, for as long as somebody waits.
    Stuck,
    /// It is elsewhere.
    Elsewhere(String),
    /// There is none.
    Missing,
    /// Only for who has a password.
    Unauthorized,
}

/// What it is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The path of the request.
    pub(crate) path: String,
    /// What stands behind `Authorization: Basic`.
    pub(crate) basic: Option<String>,
}

/// The server. It ends with this value.
#[derive(Debug)]
pub(crate) struct RegistryServer {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    over: Arc<AtomicBool>,
}

impl RegistryServer {
    /// One that answers so.
    pub(crate) fn start(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (asked, over) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let server = Self { address, asked: Arc::clone(&asked), over: Arc::clone(&over) };
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let (answer, asked, over) = (Arc::clone(&answer), Arc::clone(&asked), Arc::clone(&over));
                let Ok(stream) = stream else { continue };
                std::thread::spawn(move || drop(serve(stream, &*answer, &asked, &over)));
            }
        });
        server
    }

    /// What a registry is called whose images come from here.
    pub(crate) fn name(&self) -> String {
        self.address.to_string()
    }

    /// The paths that were asked for so far which have a word in them.
    pub(crate) fn asked(&self, word: &str) -> Vec<String> {
        let asked = self.asked.lock().expect("nobody panics with it");
        asked.iter().filter(|path| path.contains(word)).cloned().collect()
    }
}

impl Drop for RegistryServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // What waits for the next one hears of it.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(
    mut stream: TcpStream,
    answer: &(dyn Fn(&Asked) -> Answer + Send + Sync),
    asked: &Mutex<Vec<String>>,
    over: &AtomicBool,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let Some(request) = read(&stream)? else { return Ok(()) };
    asked.lock().expect("nobody panics with it").push(request.path.clone());
    let head = |status: &str, rest: &str| format!("HTTP/1.1 {status}\r\nConnection: close\r\n{rest}\r\n");
    match answer(&request) {
        Answer::Found(kind, body) => {
            let rest = format!("Content-Type: {kind}\r\nContent-Length: {}\r\n", body.len());
            stream.write_all(head("200 OK", &rest).as_bytes())?;
            stream.write_all(&body)
        }
        Answer::Endless => {
            stream.write_all(head("200 OK", "Content-Type: application/octet-stream\r\n").as_bytes())?;
            let zeros = vec![0; 1 << 20];
            while !over.load(Ordering::Relaxed) {
                stream.write_all(&zeros)?;
            }
            Ok(())
        }
        Answer::Stuck => {
            stream.write_all(head("200 OK", "Content-Length: 1000\r\n").as_bytes())?;
            stream.write_all(b"x")?;
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        }
        Answer::Elsewhere(to) => {
            let rest = format!("Location: {to}\r\nContent-Length: 0\r\n");
            stream.write_all(head("307 Temporary Redirect", &rest).as_bytes())
        }
        Answer::Missing => stream.write_all(head("404 Not Found", "Content-Length: 0\r\n").as_bytes()),
        Answer::Unauthorized => {
            let rest = "WWW-Authenticate: Basic realm=\"test\"\r\nContent-Length: 0\r\n";
            stream.write_all(head("401 Unauthorized", rest).as_bytes())
        }
    }
}

/// A request; nothing where somebody speaks TLS.
fn read(stream: &TcpStream) -> std::io::Result<Option<Asked>> {
    let mut lines = BufReader::new(stream.take(64 << 10)).split(b'\n');
    let first = lines.next().transpose()?.unwrap_or_default();
    let first = String::from_utf8_lossy(&first).into_owned();
    let Some(path) = first.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()) else { return Ok(None) };
    let mut basic = None;
    for line in lines {
        let line = String::from_utf8_lossy(&line?).trim().to_owned();
        if line.is_empty() {
            break;
        }
        if let Some(word) = line.strip_prefix("Authorization: Basic ") {
            basic = Some(word.to_owned());
        }
    }
    Ok(Some(Asked { path: path.to_owned(), basic }))
}
