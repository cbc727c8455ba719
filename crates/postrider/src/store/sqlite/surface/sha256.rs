//! SHA-256 in SQL, for the digests of reserved keys: SQLite has no function for it. A row of the recursion is one
//! round, 64 rounds are one block of 64 bytes.

/// Where the state begins: of the square roots of primes.
const START: [u32; 8] =
    [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
/// One word for each round: of their cube roots.
const ROUNDS: &str = "428a2f9871374491b5c0fbcfe9b5dba53956c25b59f111f1923f82a4ab1c5ed5\
    d807aa9812835b01243185be550c7dc372be5d7480deb1fe9bdc06a7c19bf174\
    e49b69c1efbe47860fc19dc6240ca1cc2de92c6f4a7484aa5cb0a9dc76f988da\
    983e5152a831c66db00327c8bf597fc7c6e00bf3d5a7914706ca635114292967\
    27b70a852e1b21384d2c6dfc53380d13650a7354766a0abb81c2c92e92722c85\
    a2bfe8a1a81a664bc24b8b70c76c51a3d192e819d6990624f40e3585106aa070\
    19a4c1161e376c082748774c34b0bcb5391c0cb34ed8aa4a5b9cca4f682e6ff3\
    748f82ee78a5636f84c878148cc7020890befffaa4506cebbef9a3f7c67178f2";
const WORD_MAX: &str = "4294967295";
const STATE: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
/// How many words of the message a round looks back, without the one it uses.
const BACK: usize = 15;

/// What stands behind a message of so many bytes until its blocks are full; its length, the last word, is zero here.
pub(super) fn padding(bytes: &str) -> String {
    format!("x'80' || zeroblob(8 + (64 - ({bytes} + 9) % 64) % 64)")
}

/// An expression for the digest in hexadecimal of the padded message, of which `bytes` are the message.
pub(super) fn of(padded: &str, bytes: &str) -> String {
    let back: Vec<String> = (1..=BACK).map(|n| format!("w{n}")).collect();
    let before = STATE.map(|word| format!("{word}0"));
    let start = START.map(|word| word.to_string()).join(", ");
    let zeros = vec!["0"; STATE.len() + BACK].join(", ");
    let columns = [STATE.join(", "), before.join(", "), back.join(", ")].join(", ");
    format!(
        "(WITH RECURSIVE round(n, x, {columns}) AS (
      SELECT 0, {first}, {start}, {zeros}
      UNION ALL
      SELECT n + 1, {next}, {state}, {before}, {back}, x FROM round WHERE n < length({padded})
    )
    SELECT printf('{formats}', {words}) FROM round WHERE n = length({padded}))",
        first = word(padded, "1"),
        next = next_word(padded, bytes),
        state = state().join(", "),
        before = STATE.map(|word| format!("CASE n % 64 WHEN 0 THEN {word} ELSE {word}0 END")).join(", "),
        back = back[1..].join(", "),
        formats = "%08x".repeat(STATE.len()),
        words = STATE.join(", "),
    )
}

/// The state after this round, to which the last one of a block adds the state before it.
fn state() -> [String; 8] {
    let choose = "((e & f) | (~e & g))";
    let majority = "((a & b) | (a & c) | (b & c))";
    let one = format!(
        "h + {} + {choose} + x + {}",
        mixed([rotated("e", 6), rotated("e", 11), rotated("e", 25)]),
        word(&format!("x'{ROUNDS}'"), "n % 64 * 4 + 1")
    );
    let two = format!("{} + {majority}", mixed([rotated("a", 2), rotated("a", 13), rotated("a", 22)]));
    let after = [format!("{one} + {two}"), "a".into(), "b".into(), "c".into(), format!("d + {one}")];
    let after: Vec<String> = after.into_iter().chain(["e", "f", "g"].map(str::to_owned)).collect();
    std::array::from_fn(|at| {
        format!("(({}) + CASE n % 64 WHEN 63 THEN {}0 ELSE 0 END) & {WORD_MAX}", after[at], STATE[at])
    })
}

fn next_word(padded: &str, bytes: &str) -> String {
    let far = mixed([rotated("w2", 7), rotated("w2", 18), "(w2 >> 3)".to_owned()]);
    let near = mixed([rotated("w15", 17), rotated("w15", 19), "(w15 >> 10)".to_owned()]);
    let given = word(padded, "((n + 1) / 64) * 64 + (n + 1) % 64 * 4 + 1");
    format!(
        "CASE WHEN (n + 1) % 64 >= 16 THEN ({near} + w10 + {far} + w1) & {WORD_MAX}
             WHEN n + 1 = length({padded}) - 64 + 15 THEN {bytes} * 8 ELSE {given} END"
    )
}

/// The four bytes of a blob from there, as a number.
fn word(blob: &str, from: &str) -> String {
    let digits = (0..8).map(|digit| {
        let hex = format!("substr(hex(substr({blob}, {from}, 4)), {}, 1)", digit + 1);
        format!("((instr('0123456789ABCDEF', {hex}) - 1) << {})", 28 - 4 * digit)
    });
    format!("({})", digits.collect::<Vec<_>>().join(" + "))
}

fn rotated(word: &str, by: u32) -> String {
    format!("(((({word} << 32) | {word}) >> {by}) & {WORD_MAX})")
}

/// Exclusive or, for which SQLite has no operator.
fn mixed(words: [String; 3]) -> String {
    let [first, second, third] = words;
    [second, third]
        .into_iter()
        .fold(first, |left, right| format!("(({left} | {right}) - ({left} & {right}))"))
}
