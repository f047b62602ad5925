#include "server/served_models/requested_model.h"

#include <gtest/gtest.h>

namespace espalier::server {
namespace {

std::string of_body(std::string body) {
  net::HttpRequest request;
  request.body = std::move(body);
  return requested_model(request);
}

TEST(RequestedModel, IsTheTopMemberOfJson) {
  EXPECT_EQ(of_body(R"({"model":"a/b","prompt":"x"})"), "a/b");
  EXPECT_EQ(of_body(R"({"prompt":"x","n":1,"stream":true,"k":null,"model":"later"})"), "later");
  EXPECT_EQ(of_body(R"({"m":{"model":"inner"},"list":[{"model":"x"}],"model":"outer"})"), "outer");
  EXPECT_EQ(of_body(R"({"messages":[{"role":"user","content":"{\"model\":\"no\"}"}]})"), "");
  EXPECT_EQ(of_body(R"({"model":"Ä \"q\""})"), "Ä \"q\"");
}

TEST(RequestedModel, IsOllamasNameWhereThereIsNoModel) {
  const auto of_ollama = [](std::string body) {
    net::HttpRequest request;
    request.path = "/api/show";
    request.body = std::move(body);
    return requested_model(request);
  };
  EXPECT_EQ(of_ollama(R"({"name":"a/b","verbose":true})"), "a/b");
  EXPECT_EQ(of_ollama(R"({"name":"a","model":"b"})"), "b");
  EXPECT_EQ(of_ollama(R"({"model":"b","name":"a"})"), "b");
  EXPECT_EQ(of_ollama(R"({"options":{"name":"inner"},"x":"y"})"), "");
  EXPECT_EQ(of_ollama(R"({"name":7})"), "");
  EXPECT_EQ(of_ollama(R"({"name":"cut o)"), "");
  EXPECT_EQ(of_body(R"({"name":"a"})"), "");
}

TEST(RequestedModel, IsFoundBeforeTheBodyEnds) {
  EXPECT_EQ(of_body(R"({"model":"a","prompt":)"), "a");
}

TEST(RequestedModel, NoneWhereTheBodyNamesNone) {
  EXPECT_EQ(of_body(""), "");
  EXPECT_EQ(of_body("{"), "");
  EXPECT_EQ(of_body("no JSON"), "");
  EXPECT_EQ(of_body(R"(["model","a"])"), "");
  EXPECT_EQ(of_body(R"({"model":7})"), "");
  EXPECT_EQ(of_body(R"({"model":null,"x":"a"})"), "");
  EXPECT_EQ(of_body(R"({"model":["a"]})"), "");
  EXPECT_EQ(of_body(R"("model")"), "");
}

TEST(RequestedModel, QueryGoesBeforeTheBody) {
  net::HttpRequest request;
  request.query = "model=from%20query";
  request.body = R"({"model":"from body"})";
  EXPECT_EQ(requested_model(request), "from query");
}

TEST(RequestedModel, IsAPartOfAForm) {
  net::HttpRequest request;
  request.headers = {{"Content-Type", "multipart/form-data; boundary=b"}};
  request.body =
      "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n"
      "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--b--\r\n";
  EXPECT_EQ(requested_model(request), "whisper");
}

}  // namespace
}  // namespace espalier::server
