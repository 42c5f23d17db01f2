//! What the small programs without a library are told: a guest's plan and requests to its first process, and those to
//! whoever makes clones.

use pando_shim::{Answer, Report, Request, Step, Text, next_step};

/// Refused, or the same when it is written again.
pub(crate) fn plans(data: &[u8]) {
    let (mut rest, mut again) = (data, Vec::new());
    let mut steps = Vec::new();
    while let Some(Ok(step)) = next_step(&mut rest) {
        again = postcard::to_extend(&step, again).expect("a vector takes everything");
        steps.push(step);
    }
    let mut rest = &again[..];
    for step in steps {
        assert_eq!(next_step(&mut rest).map(Result::ok), Some(Some(step)));
    }
    assert_eq!(next_step(&mut rest).map(drop), None::<()>);
    if let Ok(text) = Text::new(data) {
        assert_eq!(text.c_str().to_bytes_with_nul(), data);
    }
    let _ = (
        postcard::from_bytes::<Request>(data),
        postcard::from_bytes::<Answer>(data),
        postcard::from_bytes::<Report>(data),
    );
    if let Some(words) = data.first_chunk::<{ 4 * pando_restorer::WORDS }>() {
        let words = std::array::from_fn(|word| {
            u32::from_le_bytes([words[word * 4], words[word * 4 + 1], words[word * 4 + 2], words[word * 4 + 3]])
        });
        if let Some(request) = pando_restorer::Request::from_words(words) {
            assert_eq!(pando_restorer::Request::from_words(request.words()), Some(request));
        }
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let path = Text::new(c"/proc".to_bytes_with_nul()).expect("it ends in NUL");
    let steps = [
        Step::Session,
        Step::WorkingDirectory { path },
        Step::User { uid: 7, gid: 7, groups: &[1, 0, 0, 0] },
        Step::Exec { arguments: b"sh\0-c\0", environment: b"A=b\0", search: b"/bin" },
    ];
    let mut plan = Vec::new();
    for step in steps {
        plan = postcard::to_extend(&step, plan).expect("a vector takes everything");
    }
    vec![plan, [2, 0, 0, 0].repeat(pando_restorer::WORDS)]
}
