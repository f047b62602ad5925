// What the server fetches for a client, and above all what it does not.
#include "server/images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <fstream>
#include <functional>
#include <mutex>
#include <thread>

#include "base/base64.h"
#include "engine/testing/refusing_encoder.h"
#include "net/client.h"
#include "net/test_socket.h"
#include "server/server.h"

namespace espalier::server {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

std::string ok(std::string_view body) {
  return fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body);
}
std::string redirect(std::string_view location) {
  return fmt::format("HTTP/1.1 302 Found\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", location);
}

// On the loopback address: answers what `answer` makes of the request's first line, "" never.
class PictureServer {
 public:
  explicit PictureServer(std::function<std::string(std::string_view)> answer)
      : answer_(std::move(answer)) {
    std::tie(listener_, port_) = net::listen_on_loopback();
    thread_ = std::thread([this] { serve(); });
  }
  ~PictureServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
    for (const int fd : silent_) ::close(fd);
  }
  std::string url(std::string_view path) const {
    return fmt::format("http://127.0.0.1:{}{}", port_, path);
  }
  std::vector<std::string> requests() const {
    std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void serve() {
    for (int fd; (fd = ::accept(listener_, nullptr, nullptr)) >= 0;) {
      char bytes[8192];
      const ssize_t n = ::recv(fd, bytes, sizeof bytes, 0);
      const std::string request(bytes, static_cast<size_t>(std::max<ssize_t>(n, 0)));
      const std::string line = request.substr(0, request.find("\r\n"));
      {
        std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      const std::string answer = answer_(line);
      if (answer.empty()) {
        silent_.push_back(fd);
        continue;
      }
      (void)::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
      ::close(fd);
    }
  }

  const std::function<std::string(std::string_view)> answer_;
  int listener_ = -1, port_ = 0;
  mutable std::mutex mutex_;
  std::vector<std::string> requests_;
  std::vector<int> silent_;  // the thread's, then the destructor's
  std::thread thread_;
};

MediaAccess open_access() {
  return {.limits = {.bytes_max = 1000},
          .domains = {"127.0.0.1"},
          .private_addresses = true,
          .fetch_timeout = 5s};
}

std::string problem(const std::string& source, const MediaAccess& access) {
  const auto read = read_picture(source, access);
  return read ? "read: " + *read : read.error().message();
}

TEST(ReadPicture, FetchesFromAllowedHosts) {
  PictureServer server([](std::string_view) { return ok("picture"); });
  EXPECT_EQ(read_picture(server.url("/a/b.png?size=1#part"), open_access()), "picture");
  ASSERT_EQ(server.requests().size(), 1u);
  EXPECT_THAT(server.requests()[0], testing::StartsWith("GET /a/b.png?size=1 HTTP/1.1\r\n"));
  EXPECT_EQ(read_picture("HTTP" + server.url("/").substr(4), open_access()), "picture");
}

TEST(ReadPicture, FetchesNothingUnlessHostsAreStated) {
  MediaAccess access = open_access();
  access.domains.clear();
  PictureServer server([](std::string_view) { return ok("picture"); });
  EXPECT_THAT(problem(server.url("/"), access), HasSubstr("--allowed-media-domains"));
  EXPECT_TRUE(server.requests().empty());
}

TEST(ReadPicture, HostsAreComparedWhole) {
  MediaAccess access = open_access();
  access.domains = {"Good.example", "*.wide.example"};
  for (const char* url :
       {"http://good.example.evil.test/", "http://evilgood.example/", "http://wide.example/",
        "http://widexexample/", "https://evil.test/?good.example", "http://evil.test/good.example",
        "http://evil.test#good.example", "http://xwide.example/", "http://127.0.0.1/"})
    EXPECT_THAT(problem(url, access), HasSubstr("is not among those")) << url;
  for (const char* url :
       {"http://good.example@evil.test/", "http://evil.test\\good.example/", "http:///x", "http://",
        "http://good.example:99999/", "http://good.example/a b", "http://good.example/\r\nX: y",
        "http://good.ex\xc3\xa4mple/", "http://good.example%2eevil.test/"})
    EXPECT_THAT(problem(url, access), HasSubstr("is not the URL of a picture")) << url;
}

// Names whose addresses are not public are not connected to, whatever the domains.
TEST(ReadPicture, PrivateAddressesAreNotConnectedTo) {
  PictureServer server([](std::string_view) { return ok("secret"); });
  MediaAccess access = open_access();
  access.private_addresses = false;
  access.domains = {"*"};
  const std::string port = server.url("").substr(std::string("http://127.0.0.1").size());
  for (const char* host : {"127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001",
                           "0177.0.0.1", "0", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "[::]"}) {
    const std::string why = problem("http://" + std::string(host) + port + "/", access);
    EXPECT_TRUE(why.find("no public address") != std::string::npos ||
                why.find("no connection") != std::string::npos)
        << host << ": " << why;
  }
  EXPECT_TRUE(server.requests().empty());
  EXPECT_THAT(problem("http://169.254.169.254/latest/meta-data/", access),
              HasSubstr("no public address"));
}

TEST(ReadPicture, RedirectsAreCheckedAsTheFirstUrlIs) {
  PictureServer target([](std::string_view) { return ok("picture"); });
  std::string location;
  PictureServer server([&](std::string_view line) {
    return line.starts_with("GET /end") ? ok("end") : redirect(location);
  });
  location = target.url("/moved");
  EXPECT_EQ(read_picture(server.url("/"), open_access()), "picture");
  location = "/end";
  EXPECT_EQ(read_picture(server.url("/"), open_access()), "end");
  location = "http://evil.test/";
  EXPECT_THAT(problem(server.url("/"), open_access()), HasSubstr("'evil.test' is not among"));
  location = "//evil.test/";
  EXPECT_THAT(problem(server.url("/"), open_access()), HasSubstr("'evil.test' is not among"));
  for (const char* bad :
       {"file:///etc/passwd", "gopher://127.0.0.1/", "data:image/png;base64,AA=="}) {
    location = bad;
    EXPECT_THAT(problem(server.url("/"), open_access()), HasSubstr("is redirected to what")) << bad;
  }
  location = "/again";
  const size_t before = server.requests().size();
  EXPECT_THAT(problem(server.url("/"), open_access()), HasSubstr("more than 3 times"));
  EXPECT_EQ(server.requests().size() - before, 4u);
}

TEST(ReadPicture, SizeAndTimeAreBounded) {
  PictureServer large([](std::string_view) { return ok(std::string(1001, 'x')); });
  EXPECT_THAT(problem(large.url("/"), open_access()), HasSubstr("above the limit of 1000 bytes"));
  PictureServer endless(
      [](std::string_view) { return "HTTP/1.1 200 OK\r\n\r\n" + std::string(5000, 'x'); });
  EXPECT_THAT(problem(endless.url("/"), open_access()), HasSubstr("above the limit"));
  MediaAccess hasty = open_access();
  hasty.fetch_timeout = 100ms;
  PictureServer silent([](std::string_view) { return std::string(); });
  EXPECT_THAT(problem(silent.url("/"), hasty), HasSubstr("it takes too long"));
  PictureServer cut([](std::string_view) {
    return std::string("HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\nxx");
  });
  EXPECT_THAT(problem(cut.url("/"), open_access()), HasSubstr("cannot be fetched"));
  PictureServer gone(
      [](std::string_view) { return std::string("HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"); });
  EXPECT_THAT(problem(gone.url("/"), open_access()), HasSubstr("status 404"));
}

TEST(ReadPicture, OtherSourcesAreReadAsMediaSays) {
  const MediaAccess access = open_access();
  EXPECT_EQ(read_picture("data:image/png;base64," + encode_base64("bytes"), access), "bytes");
  EXPECT_EQ(read_picture(encode_base64("bytes"), access), "bytes");
  EXPECT_THAT(problem("file:///etc/passwd", access), HasSubstr("--allowed-local-media-path"));
  EXPECT_THAT(problem("ftp://127.0.0.1/x", access), HasSubstr("is no base64"));
}

TEST(PictureParts, AreFoundInOrder) {
  const boost::json::value messages = boost::json::parse(R"([
    {"role": "system", "content": "x"},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}},
                                 {"type": "text", "text": "t"},
                                 {"type": "input_image", "image_url": "b"}]},
    {"role": "assistant"},
    {"role": "user", "content": [{"type": "image_url", "image_url": "c"}]}])");
  std::vector<std::string> sources;
  for (const PictureSource& each : picture_sources(messages)) {
    EXPECT_FALSE(each.is_video);
    ASSERT_EQ(each.files.size(), 1u);
    sources.push_back(each.files[0]);
  }
  EXPECT_THAT(sources, ElementsAre("a", "b", "c"));
  EXPECT_EQ(num_pictures(messages), 3u);
  for (const char* part : {R"({"type":"image_url"})", R"({"type":"image_url","image_url":{}})",
                           R"({"type":"image_url","image_url":{"url":""}})",
                           R"({"type":"input_image","image_url":1})"})
    EXPECT_FALSE(picture_source(boost::json::parse(part), "messages[0]")) << part;
  EXPECT_EQ(picture_source(picture_part("x"), ""), "x");
}

// Calls whose pictures come in one batch with one that the encoder refuses. Until that has
// happened: all come while one is encoded.
TEST(Pictures, OneThatTheEncoderRefusesFailsItsCallAlone) {
  const RefusingEngine refusing = make_refusing_engine();
  ASSERT_NE(refusing.engine, nullptr);
  ServerConfig config;
  config.port = 0;
  auto server = Server::create(config, *refusing.engine);
  ASSERT_TRUE(server) << server.error().to_string();
  ASSERT_TRUE((*server)->start().ok());
  const auto call = [&](const ImageInput& picture) {
    net::HttpClientConfig to;
    to.read_timeout = 20s;
    auto client =
        net::HttpClient::create(fmt::format("http://127.0.0.1:{}", (*server)->port()), to);
    const std::string body = fmt::format(
        R"({{"input_ids":[1,{},2],"image_data":"{}","sampling_params":{{"max_new_tokens":3,)"
        R"("temperature":0,"ignore_eos":true}}}})",
        kPlaceholder, encode_base64(*picture.read()));
    return client->post("/generate", body);
  };
  int32_t width = 10;
  while (refusing.counts->num_refused_together == 0) {
    refusing.counts->num_awaited = refusing.counts->num_come + 6;
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t, ++width) {
      threads.emplace_back([&call, t, width] {
        const auto answer =
            call(t == 2 ? RefusingEncoder::dark_picture(width, 20) : picture(width, 20));
        ASSERT_TRUE(answer) << answer.error().to_string();
        EXPECT_EQ(answer->status, t == 2 ? 400 : 200) << answer->body;
        EXPECT_THAT(answer->body, HasSubstr(t == 2 ? "picture 1 of 1: the encoder does not take"
                                                   : "\"completion_tokens\":3"));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  (*server)->stop(5s);
}

// Of a message with one part, which passes its check.
PictureSource video_of(const char* part) {
  const auto messages =
      boost::json::parse(fmt::format(R"([{{"role":"user","content":[{}]}}])", part));
  const auto& parsed = messages.at(0).at("content").at(0);
  EXPECT_TRUE(is_video_part(parsed)) << part;
  EXPECT_TRUE(check_video(parsed, "messages[0].content[0]").ok()) << part;
  EXPECT_EQ(num_pictures(messages), 1u);
  return picture_sources(messages).at(0);
}

TEST(Videos, PartsNameTheirFrames) {
  const PictureSource list = video_of(R"({"type":"video","video":["a","b"],"fps":4})");
  EXPECT_TRUE(list.is_video);
  EXPECT_THAT(list.files, ElementsAre("a", "b"));
  EXPECT_EQ(list.frames_per_second, 4);
  const PictureSource url =
      video_of(R"({"type":"video_url","video_url":{"url":"data:video/jpeg;base64,aa,bb,cc"}})");
  EXPECT_THAT(url.files, ElementsAre("aa", "bb", "cc"));
  EXPECT_EQ(url.frames_per_second, 0);
  EXPECT_THAT(
      video_of(R"({"type":"video_url","video_url":"data:video/jpeg;base64,aa","fps":null})").files,
      ElementsAre("aa"));
  const auto inputs =
      image_inputs(std::make_shared<const MediaAccess>(), {list, pictures_alone({"c"})[0]});
  ASSERT_EQ(inputs.size(), 2u);
  EXPECT_EQ(inputs[0].frames.size(), 2u);
  EXPECT_EQ(inputs[0].frames_per_second, 4);
  EXPECT_EQ(inputs[0].source_bytes, 2);
  EXPECT_FALSE(inputs[1].is_video());
}

TEST(Videos, PartsNameTheirFile) {
  const PictureSource url =
      video_of(R"({"type":"video_url","video_url":{"url":"https://a/b.mp4"}})");
  EXPECT_THAT(url.files, ElementsAre("https://a/b.mp4"));
  ASSERT_TRUE(url.video_file);
  EXPECT_EQ(url.video_file->frames_per_second, 0);
  const PictureSource base64 = video_of(R"({"type":"video","video":"AAAA","fps":4})");
  EXPECT_EQ(base64.video_file->frames_per_second, 4);
  const PictureSource data =
      video_of(R"({"type":"video_url","video_url":"data:video/mp4;base64,AAAA","num_frames":8})");
  EXPECT_EQ(data.video_file->num_frames, 8);
  const auto inputs = image_inputs(std::make_shared<const MediaAccess>(), {data});
  ASSERT_EQ(inputs.size(), 1u);
  EXPECT_TRUE(inputs[0].is_video());
  EXPECT_TRUE(inputs[0].frames.empty());
  const auto bytes = inputs[0].read();
  ASSERT_TRUE(bytes) << bytes.error().message();
  EXPECT_EQ(*bytes, std::string(3, '\0'));
}

// A file may have 16 times the bytes of a picture.
TEST(Videos, FilesHaveABoundOfTheirOwn) {
  MediaAccess access;
  access.limits.bytes_max = 3;
  const PictureSource file{
      .files = {"data:video/mp4;base64,AAAAAAAA"}, .is_video = true, .video_file = VideoSampling{}};
  const auto shared = std::make_shared<const MediaAccess>(access);
  EXPECT_TRUE(image_inputs(shared, {file})[0].read());
  EXPECT_FALSE(image_inputs(shared, pictures_alone(file.files))[0].read());
}

TEST(Videos, PartsThatAreMalformedAreRefused) {
  const auto refused = [](std::string_view part) {
    const Status status = check_video(boost::json::parse(part), "messages[0].content[1]");
    EXPECT_FALSE(status.ok()) << part;
    return std::string(status.message());
  };
  EXPECT_THAT(refused(R"({"type":"video_url","video_url":"x","fps":2,"num_frames":4})"),
              HasSubstr("both fps and num_frames"));
  EXPECT_THAT(refused(R"({"type":"video","video":["a"],"num_frames":4})"),
              HasSubstr("num_frames is for files"));
  for (const char* count : {"0", "-1", "4097", "\"2\""})
    EXPECT_THAT(refused(fmt::format(R"({{"type":"video","video":"a","num_frames":{}}})", count)),
                HasSubstr("num_frames must be a number from 1 to 4096"));
  EXPECT_THAT(refused(R"({"type":"video","video":[]})"), HasSubstr("0 frames"));
  EXPECT_THAT(refused(R"({"type":"video_url","video_url":"data:video/jpeg;base64,"})"),
              HasSubstr("0 frames"));
  EXPECT_THAT(refused(R"({"type":"video_url","video_url":"data:video/jpeg;base64,)" +
                      std::string(5000, ',') + R"("})"),
              HasSubstr("5000 frames"));
  EXPECT_THAT(refused(R"({"type":"video","video":[5]})"), HasSubstr("content[1].video must be"));
  EXPECT_THAT(refused(R"({"type":"video","video":["a",""]})"), HasSubstr("video must be"));
  for (const char* fps : {"0", "0.009", "1e-9", "1001", "-2", "\"2\""})
    EXPECT_THAT(refused(fmt::format(R"({{"type":"video","video":["a"],"fps":{}}})", fps)),
                HasSubstr("content[1].fps must be a number from 0.01 to 1000"));
  EXPECT_THAT(refused(R"({"type":"video"})"), HasSubstr("must have its file"));
}

// A picture's source is never read as another thing.
TEST(Videos, APictureIsNone) {
  for (const char* source : {"video 2", "video inf\nX", "video 1\n\n\n"}) {
    const auto inputs =
        image_inputs(std::make_shared<const MediaAccess>(open_access()), pictures_alone({source}));
    ASSERT_EQ(inputs.size(), 1u);
    EXPECT_FALSE(inputs[0].is_video());
    EXPECT_FALSE(inputs[0].read());
  }
}

TEST(Videos, AllFramesAreFetchedInTheTimeOfOnePicture) {
  PictureServer server([](std::string_view) {
    std::this_thread::sleep_for(50ms);
    return std::string("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx");
  });
  MediaAccess access = open_access();
  access.fetch_timeout = 300ms;
  const PictureSource video{.files = std::vector<std::string>(20, server.url("/")),
                            .is_video = true};
  const auto inputs = image_inputs(std::make_shared<const MediaAccess>(access), {video});
  ASSERT_EQ(inputs.size(), 1u);
  size_t fetched = 0;
  for (; fetched < inputs[0].frames.size(); ++fetched) {
    const auto file = inputs[0].frames[fetched]();
    if (file) continue;
    EXPECT_THAT(file.error().message(), HasSubstr("it takes too long"));
    break;
  }
  EXPECT_LE(fetched, 6u);
}

}  // namespace
}  // namespace espalier::server
