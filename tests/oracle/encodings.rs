//! What the classifier takes for granted of PostgreSQL's encodings: when the server converts a text, a character beyond
//! ASCII stays beyond ASCII, so a constant ends where its quote stands.
//!
//! Source: <https://www.postgresql.org/docs/current/multibyte.html>

use pgpalisade_test_servers::postgres::Postgres;

const CONVERTED: &str = "
    CREATE FUNCTION converted(bytes bytea, from_name name, to_name name) RETURNS bytea LANGUAGE plpgsql AS $$
    BEGIN
        RETURN convert(bytes, from_name, to_name);
    EXCEPTION WHEN OTHERS THEN
        RETURN NULL; -- no character
    END $$";

/// Encodings that only clients may have: there, the second byte of a character may be one of ASCII.
const ONLY_OF_CLIENTS: [&str; 7] = [
    "SJIS",
    "SHIFT_JIS_2004",
    "BIG5",
    "GBK",
    "UHC",
    "GB18030",
    "JOHAB",
];

/// Converts each character of two bytes of the encoding $1 to each encoding of a server.
const BECOME_ASCII: &str = r"
    WITH texts AS (
        SELECT second, set_byte(set_byte('\x0000', 0, first), 1, second) AS bytes
        FROM generate_series(128, 255) AS first, generate_series($2, 255) AS second
    ), characters AS MATERIALIZED (
        SELECT * FROM texts WHERE converted(bytes, '$1', '$1') IS NOT NULL
    ), results AS (
        SELECT *, converted(bytes, '$1', pg_encoding_to_char(contoencoding)) AS result
        FROM characters, pg_conversion
        WHERE pg_encoding_to_char(conforencoding) = '$1' AND pg_encoding_to_char(contoencoding) <> ALL ('{$3}')
    ), ascii AS (
        SELECT *, get_byte(result, at) AS byte
        FROM results, generate_series(0, length(result) - 1) AS at WHERE get_byte(result, at) < 128
    )
    SELECT format('$1 %s %s', bytes, chr(byte)) FROM ascii
    -- A character of one byte, and one of ASCII after it.
    WHERE NOT (second < 128 AND byte = second AND at = length(result) - 1 AND length(result) > 1)
    ORDER BY 1";

#[test]
fn no_character_becomes_ascii_but_for_two() {
    let postgres = Postgres::start();
    postgres.sql(CONVERTED);
    let of_several_bytes = "
        SELECT DISTINCT pg_encoding_to_char(conforencoding) AS name FROM pg_conversion
        WHERE pg_encoding_to_char(conforencoding) !~ '^(LATIN|WIN|KOI8|ISO_)' ORDER BY 1";
    let encodings = postgres.sql(of_several_bytes).concat();
    // A query for each: all in one would take longer than an answer may on a busy machine.
    let become_ascii = |encoding: &String| {
        let smallest = if ONLY_OF_CLIENTS.contains(&&**encoding) {
            "1"
        } else {
            "128"
        };
        let query = BECOME_ASCII.replace("$1", encoding).replace("$2", smallest);
        postgres.sql(&query.replace("$3", &ONLY_OF_CLIENTS.join(",")))
    };
    let found: Vec<_> = encodings.iter().flat_map(become_ascii).flatten().collect();
    // The first has no form. The second is as harmless in a constant as any other letter.
    let expect = [r"SHIFT_JIS_2004 \x815f \", r"SHIFT_JIS_2004 \x81b0 ~"];
    assert_eq!(found, expect);
}
