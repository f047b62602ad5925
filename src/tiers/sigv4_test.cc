// The examples that AWS publishes with the signature's definition
// (https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html).
#include "tiers/sigv4.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

constexpr std::string_view kTime = "20130524T000000Z";
constexpr std::string_view kEmptyHash =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

SigV4Key example_key() {
  return {.access_key_id = "AKIAIOSFODNN7EXAMPLE",
          .secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
          .region = "us-east-1",
          .service = "s3"};
}

// The signature of a request that has these headers beside those of every one.
std::string signature_of(SigV4Request request, const SigV4Key& key = example_key()) {
  request.headers.emplace_back("host", "examplebucket.s3.amazonaws.com");
  request.headers.emplace_back("x-amz-content-sha256", std::string(request.body_hash));
  request.headers.emplace_back("x-amz-date", std::string(kTime));
  const std::string value = sigv4_authorization(key, request, kTime);
  return value.substr(value.find("Signature=") + 10);
}

TEST(SigV4, SignsThePublishedExamples) {
  EXPECT_EQ(signature_of({.method = "GET",
                          .path = "/test.txt",
                          .headers = {{"range", "bytes=0-9"}},
                          .body_hash = kEmptyHash}),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  const std::string path = uri_encode("/test$file.text", false);
  const std::string hash = hex_sha256("Welcome to Amazon S3.");
  EXPECT_EQ(signature_of({.method = "PUT",
                          .path = path,
                          .headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                      {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                          .body_hash = hash}),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  EXPECT_EQ(
      signature_of({.method = "GET", .path = "/", .query = "lifecycle=", .body_hash = kEmptyHash}),
      "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(
      signature_of(
          {.method = "GET", .path = "/", .query = "max-keys=2&prefix=J", .body_hash = kEmptyHash}),
      "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(SigV4, NamesKeyScopeAndHeaders) {
  const std::string value = sigv4_authorization(
      example_key(),
      {.method = "GET", .path = "/", .headers = {{"x-amz-date", "t"}, {"host", "h"}}}, kTime);
  EXPECT_TRUE(
      value.starts_with("AWS4-HMAC-SHA256 "
                        "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
                        "SignedHeaders=host;x-amz-date, Signature="))
      << value;
}

TEST(SigV4, DependsOnEveryPart) {
  const SigV4Request request{.method = "GET",
                             .path = "/a",
                             .query = "b=c",
                             .headers = {{"x-amz-d", "e"}},
                             .body_hash = kEmptyHash};
  const std::string whole = signature_of(request);
  const auto changed = [&](auto change) {
    SigV4Request other = request;
    change(other);
    return signature_of(other);
  };
  EXPECT_NE(changed([](SigV4Request& r) { r.method = "PUT"; }), whole);
  EXPECT_NE(changed([](SigV4Request& r) { r.path = "/b"; }), whole);
  EXPECT_NE(changed([](SigV4Request& r) { r.query = "b=d"; }), whole);
  EXPECT_NE(changed([](SigV4Request& r) { r.headers[0].second = "f"; }), whole);
  EXPECT_NE(changed([](SigV4Request& r) { r.body_hash = "UNSIGNED-PAYLOAD"; }), whole);
  for (std::string SigV4Key::*member :
       {&SigV4Key::secret_access_key, &SigV4Key::region, &SigV4Key::service}) {
    SigV4Key key = example_key();
    key.*member += "x";
    EXPECT_NE(signature_of(request, key), whole);
  }
}

TEST(SigV4, EncodesAndFormatsTheTime) {
  EXPECT_EQ(uri_encode("a/b c~d$\xc3\xa4", false), "a/b%20c~d%24%C3%A4");
  EXPECT_EQ(uri_encode("a/b", true), "a%2Fb");
  EXPECT_EQ(sigv4_time(std::chrono::system_clock::from_time_t(1369353600)), kTime);
  EXPECT_EQ(hex_sha256(""), kEmptyHash);
}

}  // namespace
}  // namespace espalier
