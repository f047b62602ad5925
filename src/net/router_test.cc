#include "net/router.h"

#include <gtest/gtest.h>

namespace espalier::net {
namespace {

Handler named(std::string name, std::string* called) {
  return [=](HttpRequest&&, ResponsePtr) { *called = name; };
}

TEST(Router, FindsByMethodAndPattern) {
  std::string called;
  Router router;
  for (const auto& [method, pattern] :
       std::vector<std::pair<const char*, const char*>>{{"GET", "/"},
                                                        {"GET", "/v1/models"},
                                                        {"GET", "/v1/models/{model*}"},
                                                        {"POST", "/v1/models"},
                                                        {"GET", "/a/{x}/c"},
                                                        {"GET", "/a/b/c"}}) {
    ASSERT_TRUE(router.add(method, pattern, named(std::string(method) + pattern, &called)).ok());
  }
  EXPECT_EQ(router.add("GET", "/", nullptr).code(), StatusCode::kAlreadyExists);

  struct Case {
    const char *method, *path, *expected, *param;
  };
  for (const Case& c : {
           Case{"GET", "/", "GET/", ""},
           {"GET", "/v1/models", "GET/v1/models", ""},
           {"HEAD", "/v1/models", "GET/v1/models", ""},
           {"POST", "/v1/models", "POST/v1/models", ""},
           {"GET", "/v1/models/a", "GET/v1/models/{model*}", "a"},
           {"GET", "/v1/models/org/a-7b", "GET/v1/models/{model*}", "org/a-7b"},
           {"GET", "/a/b/c", "GET/a/b/c", ""},
           {"GET", "/a/z/c", "GET/a/{x}/c", "z"},
           {"GET", "/v1/models/", nullptr, ""},
           {"GET", "/v1", nullptr, ""},
           {"GET", "/a//c", nullptr, ""},
           {"GET", "/a/b/c/", nullptr, ""},
           {"PUT", "/v1/models", nullptr, ""},
       }) {
    SCOPED_TRACE(std::string(c.method) + " " + c.path);
    const Router::Match match = router.find(c.method, c.path);
    ASSERT_EQ(match.handler != nullptr, c.expected != nullptr);
    if (match.handler == nullptr) continue;
    (*match.handler)({}, nullptr);
    EXPECT_EQ(called, c.expected);
    EXPECT_EQ(match.params.empty() ? "" : match.params[0].second, c.param);
  }
  EXPECT_EQ(router.find("PUT", "/v1/models").allowed, (std::vector<std::string>{"GET", "POST"}));
  EXPECT_TRUE(router.find("GET", "/none").allowed.empty());
}

TEST(Http, DecodesEscapesAndQueries) {
  EXPECT_EQ(percent_decode("a%20b%2Fc", false), "a b/c");
  EXPECT_EQ(percent_decode("a+b", true), "a b");
  EXPECT_EQ(percent_decode("a+b", false), "a+b");
  for (const char* bad : {"%", "%2", "%zz", "%00", "a%"}) {
    EXPECT_FALSE(percent_decode(bad, false)) << bad;
  }
  HttpRequest request;
  request.query = "a=1&b=x%20y&flag&a=2&bad=%zz";
  EXPECT_EQ(request.query_param("a"), "1");
  EXPECT_EQ(request.query_param("b"), "x y");
  EXPECT_EQ(request.query_param("flag"), "");
  EXPECT_FALSE(request.query_param("bad"));
  EXPECT_FALSE(request.query_param("none"));
  request.headers = {{"Content-Type", "x"}};
  ASSERT_NE(request.header("content-TYPE"), nullptr);
  EXPECT_EQ(request.header("content"), nullptr);
}

}  // namespace
}  // namespace espalier::net
