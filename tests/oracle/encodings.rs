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

/// Converts each character of two bytes to each encoding of a server. In the encodings that servers may have, the
/// second is beyond ASCII too.
const BECOME_ASCII: &str = r"
    WITH conversions AS (
        SELECT pg_encoding_to_char(conforencoding) AS from_name, pg_encoding_to_char(contoencoding) AS to_name
        FROM pg_conversion
    ), characters AS (
        SELECT from_name, to_name, second, set_byte(set_byte('\x0000', 0, first), 1, second) AS bytes
        FROM conversions, generate_series(128, 255) AS first, generate_series(1, 255) AS second
        WHERE from_name !~ '^(LATIN|WIN|KOI8|ISO_)' AND to_name !~ $1 AND (second > 127 OR from_name ~ $1)
    ), results AS (
        SELECT *, converted(bytes, from_name, to_name) AS result FROM characters
    ), ascii AS (
        SELECT *, get_byte(result, at) AS byte
        FROM results, generate_series(0, length(result) - 1) AS at WHERE get_byte(result, at) < 128
    )
    SELECT format('%s %s %s', from_name, bytes, chr(byte)) FROM ascii
    -- A character of one byte, and one of ASCII after it.
    WHERE NOT (second < 128 AND byte = second AND at = length(result) - 1 AND length(result) > 1)
    ORDER BY 1";

#[test]
fn no_character_becomes_ascii_but_for_two() {
    let postgres = Postgres::start();
    postgres.sql(CONVERTED);
    let only_of_clients = "'^(SJIS|SHIFT_JIS_2004|BIG5|GBK|UHC|GB18030|JOHAB)$'";
    let found = postgres.sql(&BECOME_ASCII.replace("$1", only_of_clients));
    // The first has no form. The second is as harmless in a constant as any other letter.
    let expect = [r"SHIFT_JIS_2004 \x815f \", r"SHIFT_JIS_2004 \x81b0 ~"];
    assert_eq!(found.concat(), expect);
}
