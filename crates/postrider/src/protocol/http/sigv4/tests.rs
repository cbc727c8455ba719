//! The examples that AWS published: its test suite for Signature Version 4, and the examples of its S3 documentation.

use http::Method;

use super::*;
use crate::protocol::http::RequestBody;

const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const VANILLA: &str = "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31";

fn suite() -> SigV4 {
    SigV4 {
        access_key_id: "AKIDEXAMPLE".to_owned(),
        secret_access_key: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".to_owned(),
        region: "us-east-1".to_owned(),
        service: "service".to_owned(),
        session_token: None,
    }
}

fn suite_time() -> Timestamp {
    "2015-08-30T12:36:00Z".parse().unwrap()
}

/// Method, path and query.
type Target<'t> = (&'t str, &'t str, &'t str);
type HeaderLines<'t> = &'t [(&'static str, &'t str)];

fn headers_of(lines: HeaderLines<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, value.parse().unwrap());
    }
    headers
}

/// Path and query as the suite writes them: not encoded yet, which no request on the wire is.
fn signed(
    signer: &SigV4,
    target: Target<'_>,
    headers: &HeaderMap,
    body_hash: &str,
    at: Timestamp,
) -> (String, String) {
    let names = signed_names(headers);
    let canonical = signer.canonical(target, headers, &names, body_hash);
    (signer.signature(&canonical, at), list(&names))
}

#[test]
fn requests_of_the_test_suite_are_signed_as_published() {
    const LETTERS: &str = "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let unreserved_path = format!("/{LETTERS}");
    let unreserved_query = format!("{LETTERS}={LETTERS}");
    let cases: &[(&str, Target<'_>, HeaderLines<'_>, &str)] = &[
        ("get-vanilla", ("GET", "/", ""), &[], VANILLA),
        (
            "get-header-key-duplicate",
            ("GET", "/", ""),
            &[("my-header1", "value2"), ("my-header1", "value2"), ("my-header1", "value1")],
            "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea",
        ),
        (
            "get-header-value-order",
            ("GET", "/", ""),
            &[
                ("my-header1", "value4"),
                ("my-header1", "value1"),
                ("my-header1", "value3"),
                ("my-header1", "value2"),
            ],
            "08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01",
        ),
        (
            "get-header-value-trim",
            ("GET", "/", ""),
            &[("my-header1", " value1"), ("my-header2", " \"a   b   c\"")],
            "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
        ),
        (
            "get-unreserved",
            ("GET", &unreserved_path, ""),
            &[],
            "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
        ),
        (
            "get-utf8",
            ("GET", "/ሴ", ""),
            &[],
            "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85",
        ),
        (
            "get-vanilla-empty-query-key",
            ("GET", "/", "Param1=value1"),
            &[],
            "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb",
        ),
        (
            "get-vanilla-query-order-key",
            ("GET", "/", "Param1=value2&Param1=Value1"),
            &[],
            "eedbc4e291e521cf13422ffca22be7d2eb8146eecf653089df300a15b2382bd1",
        ),
        (
            "get-vanilla-query-order-key-case",
            ("GET", "/", "Param2=value2&Param1=value1"),
            &[],
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        (
            "get-vanilla-query-order-value",
            ("GET", "/", "Param1=value2&Param1=value1"),
            &[],
            "5772eed61e12b33fae39ee5e7012498b51d56abc0abb7c60486157bd471c4694",
        ),
        (
            "get-vanilla-query-order-encoded",
            ("GET", "/", "Param-3=Value3&Param=Value2&%E1%88%B4=Value1"),
            &[],
            "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac",
        ),
        (
            "get-vanilla-query-unreserved",
            ("GET", "/", &unreserved_query),
            &[],
            "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197",
        ),
        (
            "get-vanilla-utf8-query",
            ("GET", "/", "ሴ=bar"),
            &[],
            "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04",
        ),
        (
            "get-vanilla-with-session-token",
            ("GET", "/", ""),
            &[("x-amz-security-token", "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267")],
            "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8",
        ),
        (
            "post-vanilla",
            ("POST", "/", ""),
            &[],
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        ),
        (
            "post-vanilla-query",
            ("POST", "/", "Param1=value1"),
            &[],
            "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11",
        ),
        (
            "post-header-key-sort",
            ("POST", "/", ""),
            &[("my-header1", "value1")],
            "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c",
        ),
        (
            "post-header-value-case",
            ("POST", "/", ""),
            &[("my-header1", "VALUE1")],
            "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d",
        ),
        ("normalize-path/get-relative", ("GET", "/example/..", ""), &[], VANILLA),
        ("normalize-path/get-relative-relative", ("GET", "/example1/example2/../..", ""), &[], VANILLA),
        ("normalize-path/get-slash", ("GET", "//", ""), &[], VANILLA),
        ("normalize-path/get-slash-dot-slash", ("GET", "/./", ""), &[], VANILLA),
        (
            "normalize-path/get-slash-pointless-dot",
            ("GET", "/./example", ""),
            &[],
            "ef75d96142cf21edca26f06005da7988e4f8dc83a165a80865db7089db637ec5",
        ),
        (
            "normalize-path/get-slashes",
            ("GET", "//example//", ""),
            &[],
            "9a624bd73a37c9a373b5312afbebe7a714a789de108f0bdfe846570885f57e84",
        ),
        (
            "normalize-path/get-space",
            ("GET", "/example space/", ""),
            &[],
            "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741",
        ),
    ];
    for (name, request, more, expected) in cases {
        let mut headers =
            headers_of(&[("host", "example.amazonaws.com"), ("x-amz-date", "20150830T123600Z")]);
        headers.extend(headers_of(more));
        assert_eq!(signed(&suite(), *request, &headers, EMPTY, suite_time()).0, *expected, "{name}");
    }
}

#[test]
fn forms_of_the_test_suite_are_signed_with_their_body() {
    let cases = [
        (
            "application/x-www-form-urlencoded",
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        ),
        (
            "application/x-www-form-urlencoded; charset=utf8",
            "1a72ec8f64bd914b0e42e42607c7fbce7fb2c7465f63e3092b3b0d39fa77a6fe",
        ),
    ];
    for (content_type, expected) in cases {
        let headers = headers_of(&[
            ("content-type", content_type),
            ("content-length", "13"),
            ("host", "example.amazonaws.com"),
            ("x-amz-date", "20150830T123600Z"),
        ]);
        let body_hash = hex(&Sha256::digest("Param1=value1"));
        let signed = signed(&suite(), ("POST", "/", ""), &headers, &body_hash, suite_time());
        assert_eq!(signed, (expected.to_owned(), "content-type;host;x-amz-date".to_owned()));
    }
}

/// A request as it is sent, and the parts of what its `authorization` says.
fn sent(
    signer: &SigV4,
    method: Method,
    uri: &str,
    headers: HeaderMap,
    body: &'static str,
    at: &str,
) -> Request {
    let mut request = Request::new(RequestBody::new(bytes::Bytes::from_static(body.as_bytes())));
    *request.method_mut() = method;
    *request.uri_mut() = uri.parse().unwrap();
    *request.headers_mut() = headers;
    let signature = signer.sign(&mut request, at.parse().unwrap());
    assert!(authorization(&request).ends_with(&format!(", Signature={signature}")));
    request
}

fn authorization(request: &Request) -> &str {
    request.headers()[AUTHORIZATION].to_str().unwrap()
}

#[test]
fn requests_of_the_s3_documentation_are_signed_as_published() {
    let s3 = SigV4 {
        access_key_id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
        secret_access_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
        region: "us-east-1".to_owned(),
        service: "s3".to_owned(),
        session_token: None,
    };
    let host = ("host", "examplebucket.s3.amazonaws.com");
    let cases = [
        (
            Method::GET,
            "/test.txt",
            vec![host, ("range", "bytes=0-9")],
            "",
            "host;range;x-amz-content-sha256;x-amz-date",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            Method::PUT,
            "/test$file.text",
            vec![
                host,
                ("date", "Fri, 24 May 2013 00:00:00 GMT"),
                ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ],
            "Welcome to Amazon S3.",
            "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        (
            Method::GET,
            "/?lifecycle",
            vec![host],
            "",
            "host;x-amz-content-sha256;x-amz-date",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            Method::GET,
            "/?max-keys=2&prefix=J",
            vec![host],
            "",
            "host;x-amz-content-sha256;x-amz-date",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ];
    for (method, uri, headers, body, names, signature) in cases {
        let request = sent(&s3, method, uri, headers_of(&headers), body, "2013-05-24T00:00:00Z");
        let expected = format!(
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders={names}, Signature={signature}"
        );
        assert_eq!(authorization(&request), expected, "{uri}");
    }
}

#[test]
fn what_the_way_may_change_is_not_signed_and_a_second_signature_replaces_the_first() {
    let headers = headers_of(&[
        ("host", "example.amazonaws.com"),
        ("user-agent", "postrider"),
        ("traceparent", "00-1-2-01"),
        ("content-length", "0"),
        ("webhook-id", "msg_1"),
    ]);
    let signer = SigV4 { session_token: Some(HeaderValue::from_static("session")), ..suite() };
    let mut request = sent(&signer, Method::POST, "/a%20b", headers, "", "2015-08-30T12:36:00Z");
    let names = "SignedHeaders=host;webhook-id;x-amz-content-sha256;x-amz-date;x-amz-security-token,";
    let first = authorization(&request).to_owned();
    assert!(first.contains(names), "{first}");
    signer.sign(&mut request, suite_time());
    assert_eq!(authorization(&request), first);
    signer.sign(&mut request, "2015-08-31T12:36:00Z".parse().unwrap());
    assert!(authorization(&request).contains("/20150831/"));
}

#[test]
fn a_path_that_is_already_encoded_is_encoded_again_except_for_s3() {
    assert_eq!(suite().canonical_path("/a%20b/c$d"), "/a%2520b/c%24d");
    let s3 = SigV4 { service: "s3".to_owned(), ..suite() };
    assert_eq!(s3.canonical_path("/a%20b//c$d/./e"), "/a%20b//c%24d/./e");
}

#[test]
fn a_plus_in_a_query_is_a_space() {
    assert_eq!(canonical_query("b=1&&a=x+y%2b&c"), "a=x%20y%2B&b=1&c=");
}
