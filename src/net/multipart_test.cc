#include "net/multipart.h"

#include <gmock/gmock.h>

#include "base/rng.h"

namespace espalier::net {
namespace {

using ::testing::HasSubstr;

constexpr const char* kType = "multipart/form-data; boundary=XX";

std::string with_line_ends(std::string text) {
  std::string out;
  for (const char c : text) out += c == '\n' ? std::string("\r\n") : std::string(1, c);
  return out;
}

TEST(Multipart, ReadsFieldsAndFiles) {
  const std::string body = with_line_ends(
      "--XX\nContent-Disposition: form-data; name=\"purpose\"\n\nbatch\n"
      "--XX\nContent-Type: text/plain\ncontent-disposition: form-data; name=file; "
      "filename=\"a \\\"b\\\".jsonl\"\n\nline 1\n--X\n\nline 2\n\n--XX--\n");
  const auto parts = parse_form_data("Multipart/Form-Data; charset=x; Boundary=\"XX\"", body);
  ASSERT_TRUE(parts) << parts.error().message();
  ASSERT_EQ(parts->size(), 2u);
  EXPECT_EQ((*parts)[0].name, "purpose");
  EXPECT_EQ((*parts)[0].content, "batch");
  EXPECT_EQ((*parts)[1].filename, "a \"b\".jsonl");
  EXPECT_EQ((*parts)[1].content, "line 1\r\n--X\r\n\r\nline 2\r\n");
}

TEST(Multipart, AnEmptyContentAndAPreamble) {
  const std::string body = with_line_ends(
      "ignored\n--XX  \nContent-Disposition: form-data; name=\"file\"; filename=\"e\"\n\n\n--XX--");
  const auto parts = parse_form_data(kType, body);
  ASSERT_TRUE(parts) << parts.error().message();
  ASSERT_EQ(parts->size(), 1u);
  EXPECT_EQ((*parts)[0].content, "");
}

TEST(Multipart, SaysWhatIsWrong) {
  const std::string part = "--XX\nContent-Disposition: form-data; name=\"a\"\n\nx";
  const auto message = [](const char* type, const std::string& body) {
    const auto parts = parse_form_data(type, with_line_ends(body));
    return parts ? "read" : parts.error().message();
  };
  EXPECT_THAT(message("application/json", "{}"), HasSubstr("multipart/form-data"));
  EXPECT_THAT(message("multipart/form-data", part), HasSubstr("boundary"));
  EXPECT_THAT(message(kType, "nothing"), HasSubstr("does not stand in its body"));
  EXPECT_THAT(message(kType, part), HasSubstr("part 1 of the form has no end"));
  EXPECT_THAT(message(kType, "--XX\nA: b\n\nx\n--XX--"), HasSubstr("Content-Disposition"));
  EXPECT_THAT(message(kType, "--XX\nA: b\n--XX--"), HasSubstr("no end of its headers"));
  EXPECT_THAT(message(kType, part + "\n--XXtail"), HasSubstr("behind part 1"));
  std::string many;
  for (int i = 0; i < 65; ++i) many += part + "\n";
  EXPECT_THAT(message(kType, many + "--XX--"), HasSubstr("more than 64 parts"));
}

// Whatever the bytes, contents lie inside the body and nothing is read beyond it.
TEST(Multipart, MutatedFormsAreReadOrRefused) {
  const std::string good = with_line_ends(
      "--XX\nContent-Disposition: form-data; name=\"a\"; filename=\"f\"\n\nx\n--XX--");
  Rng rng(1);
  int num_read = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string body = good;
    for (uint64_t edits = 1 + rng.below(4); edits > 0; --edits) {
      const size_t at = rng.below(body.size());
      switch (rng.below(3)) {
        case 0:
          body[at] = static_cast<char>(rng());
          break;
        case 1:
          body.erase(at, 1 + rng.below(5));
          break;
        default:
          body.insert(at, good.substr(rng.below(good.size()), rng.below(9)));
      }
      if (body.empty()) body = "-";
    }
    const auto parts = parse_form_data(kType, body);
    if (!parts) continue;
    ++num_read;
    for (const FormPart& part : *parts) {
      ASSERT_GE(part.content.data(), body.data());
      ASSERT_LE(part.content.data() + part.content.size(), body.data() + body.size());
    }
  }
  EXPECT_GT(num_read, 1000);
}

}  // namespace
}  // namespace espalier::net
