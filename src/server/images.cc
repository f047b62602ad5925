#include "server/images.h"

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <cctype>
#include <utility>

#include "net/client.h"
#include "net/public_address.h"
#include "server/context.h"
#include "server/json_fields.h"
#include "server/json_view.h"

namespace espalier::server {
namespace {

namespace json = boost::json;

constexpr int kRedirectsMax = 3;
constexpr size_t kUrlBytesMax = 8 << 10;

std::string in_lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// "example.com" is itself alone; "*.example.com" is every name that ends so.
bool is_allowed(std::string_view host, const std::vector<std::string>& domains) {
  return std::ranges::any_of(domains, [&](const std::string& stated) {
    const std::string domain = in_lower_case(stated);
    if (domain == "*" || domain == host) return true;
    return domain.starts_with("*.") && host.ends_with(std::string_view(domain).substr(1));
  });
}

struct RemotePicture {
  std::string origin;  // "https://host:port"
  std::string path;    // "/..." with the query
  std::string host;    // in lower case, without the port
  bool is_https = false;
};

Status bad_url(std::string_view url) {
  return invalid_argument("'{}' is not the URL of a picture: expected https://HOST/PATH",
                          url.substr(0, 100));
}

// Only characters that a URL may have, so that none can begin another line of the request, and no
// user name, which would hide the host.
Result<RemotePicture> parse_remote(std::string_view url) {
  const auto is_plain = [](char c) { return c > ' ' && c < '\x7f' && c != '\\' && c != '"'; };
  if (url.size() > kUrlBytesMax || !std::ranges::all_of(url, is_plain)) return fail(bad_url(url));
  url = url.substr(0, url.find('#'));
  const size_t host_begin = url.find("://") + 3;
  const size_t host_end = std::min(url.find_first_of("/?", host_begin), url.size());
  RemotePicture remote;
  remote.origin = url.substr(0, host_end);
  remote.path = url.substr(host_end);
  if (!remote.path.starts_with('/')) remote.path.insert(0, "/");
  const auto parsed = net::Url::parse(remote.origin);
  if (!parsed) return fail(bad_url(url));
  remote.host = in_lower_case(parsed->host);
  if (remote.host.ends_with('.')) remote.host.pop_back();
  remote.is_https = parsed->is_https;
  const auto is_of_host = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == ':';
  };
  if (remote.host.empty() || !std::ranges::all_of(remote.host, is_of_host))
    return fail(bad_url(url));
  return remote;
}

Result<RemotePicture> check_remote(std::string_view url, const MediaAccess& access) {
  if (access.domains.empty())
    return fail(error(StatusCode::kPermissionDenied,
                      "pictures are not fetched: send the picture's bytes as "
                      "data:image/png;base64,DIGITS, or start the server with "
                      "--allowed-media-domains"));
  ESP_ASSIGN_OR_RETURN(RemotePicture remote, parse_remote(url));
  if (!is_allowed(remote.host, access.domains))
    return fail(error(StatusCode::kPermissionDenied,
                      "the host '{}' is not among those of --allowed-media-domains", remote.host));
  return remote;
}

// An address is checked and connected to in one step, for each redirect anew.
Result<net::HttpResponse> get_remote(const RemotePicture& remote, const MediaAccess& access,
                                     Duration left) {
  net::HttpClientConfig config{.connect_timeout = left,
                               .read_timeout = left,
                               .max_body_bytes = static_cast<size_t>(access.limits.bytes_max),
                               .headers = {{"Accept", "image/*"}, {"Connection", "close"}},
                               .total_timeout = left};
  if (!access.private_addresses) config.allow_address = net::is_public_address;
  ESP_ASSIGN_OR_RETURN(net::HttpClient client,
                       net::HttpClient::create(remote.origin, std::move(config)));
  auto answer = client.get(remote.path);
  if (answer) return answer;
  const Status& why = answer.error();
  if (why.code() == StatusCode::kResourceExhausted)
    return fail(invalid_argument("the picture at {} is above the limit of {} bytes", remote.host,
                                 access.limits.bytes_max));
  // What stands at other addresses is not this client's to know.
  if (why.code() == StatusCode::kPermissionDenied)
    return fail(error(StatusCode::kPermissionDenied,
                      "the host '{}' has no public address, and others are not connected to",
                      remote.host));
  return fail(invalid_argument(
      "the picture at {} cannot be fetched: {}", remote.host,
      why.code() == StatusCode::kDeadlineExceeded ? "it takes too long" : "no connection"));
}

// A redirect's target, which may be a path alone. Encrypted pictures stay so.
Result<std::string> redirected(const RemotePicture& from, const net::HttpResponse& answer) {
  const std::string* location = net::find_header(answer.headers, "Location");
  if (location == nullptr)
    return fail(invalid_argument("the picture at {} is redirected to nowhere", from.host));
  if (location->starts_with("//")) return (from.is_https ? "https:" : "http:") + *location;
  if (location->starts_with('/')) return from.origin + *location;
  const bool is_https = in_lower_case(*location).starts_with("https://");
  if (is_https || (!from.is_https && in_lower_case(*location).starts_with("http://")))
    return *location;
  return fail(
      invalid_argument("the picture at {} is redirected to what is not fetched", from.host));
}

Result<std::string> fetch_remote(std::string url, const MediaAccess& access, Duration timeout) {
  const TimePoint deadline = std::chrono::steady_clock::now() + timeout;
  for (int redirects = 0; redirects <= kRedirectsMax; ++redirects) {
    ESP_ASSIGN_OR_RETURN(const RemotePicture remote, check_remote(url, access));
    const Duration left = deadline - std::chrono::steady_clock::now();
    if (left <= Duration::zero())
      return fail(
          invalid_argument("the picture at {} cannot be fetched: it takes too long", remote.host));
    ESP_ASSIGN_OR_RETURN(net::HttpResponse answer, get_remote(remote, access, left));
    if (answer.status == 200) return std::move(answer.body);
    const bool is_redirect = answer.status == 301 || answer.status == 302 || answer.status == 303 ||
                             answer.status == 307 || answer.status == 308;
    if (!is_redirect)
      return fail(invalid_argument("the picture at {} cannot be fetched: status {}", remote.host,
                                   answer.status));
    ESP_ASSIGN_OR_RETURN(url, redirected(remote, answer));
  }
  return fail(invalid_argument("the picture is redirected more than {} times", kRedirectsMax));
}

bool is_remote(std::string_view source) {
  const std::string scheme = in_lower_case(source.substr(0, 8));
  return scheme.starts_with("http://") || scheme.starts_with("https://");
}

// The URL of {"image_url": {"url": ...}} and of {"image_url": "..."}.
const json::string* url_of(const json::value& part) {
  const json::value* url = part.get_object().if_contains("image_url");
  if (url != nullptr && url->is_object()) url = url->get_object().if_contains("url");
  return url != nullptr ? url->if_string() : nullptr;
}

// Of a video's file, so many times what a picture's may have; the engine has the same bound.
constexpr int64_t kVideoPictures = 16;
constexpr std::string_view kVideoFrames = "data:video/jpeg;base64,";
constexpr size_t kVideoFramesMax = 4096;
constexpr double kFramesPerSecondMin = 0.01, kFramesPerSecondMax = 1000;

// Frames a second; 0: none are stated.
Result<double> rate_of(const json::object& options, std::string_view where) {
  const json::value* fps = options.if_contains("fps");
  if (fps == nullptr || fps->is_null()) return 0.0;
  boost::system::error_code bad;
  const auto rate = fps->to_number<double>(bad);
  if (bad || !(rate >= kFramesPerSecondMin && rate <= kFramesPerSecondMax))
    return fail(invalid_argument("{}.fps must be a number from {} to {}", where,
                                 kFramesPerSecondMin, kFramesPerSecondMax));
  return rate;
}

// Frames that are read of a video's file; 0: none are stated.
Result<int32_t> num_frames_of(const json::object& options, std::string_view where) {
  const json::value* stated = options.if_contains("num_frames");
  if (stated == nullptr || stated->is_null()) return 0;
  boost::system::error_code bad;
  const auto count = stated->to_number<int32_t>(bad);
  if (bad || count < 1 || std::cmp_greater(count, kVideoFramesMax))
    return fail(
        invalid_argument("{}.num_frames must be a number from 1 to {}", where, kVideoFramesMax));
  return count;
}

// What names a video: a URL, base64, or the list of its frames; null: nothing does.
const json::value* video_named(const json::object& part) {
  const json::value* video = part.if_contains("video");
  if (video != nullptr && video->is_array()) return video;
  const json::value* url = part.if_contains("video_url");
  if (url == nullptr) url = video;
  if (url != nullptr && url->is_object()) url = url->get_object().if_contains("url");
  return url != nullptr && url->is_string() && !url->get_string().empty() ? url : nullptr;
}

bool is_list_of_frames(const json::value& named) {
  return named.is_array() || view(named.get_string()).starts_with(kVideoFrames);
}

// Calls take() with the source of each frame, which is empty for what is no string.
template <typename Take>
void for_each_frame(const json::value& frames, const Take& take) {
  if (frames.is_array()) {
    for (const json::value& frame : frames.get_array())
      take(frame.is_string() ? view(frame.get_string()) : std::string_view());
    return;
  }
  std::string_view left = view(frames.get_string()).substr(kVideoFrames.size());
  while (!left.empty()) {
    const size_t end = std::min(left.find(','), left.size());
    take(left.substr(0, end));
    left.remove_prefix(std::min(left.size(), end + 1));
  }
}

// where: of the options; place: of what names the video.
Status check_named_video(const json::value& named, const json::object& options,
                         std::string_view where, std::string_view place) {
  ESP_ASSIGN_OR_RETURN(const double rate, rate_of(options, where));
  ESP_ASSIGN_OR_RETURN(const int32_t num_frames, num_frames_of(options, where));
  if (rate > 0 && num_frames > 0)
    return invalid_argument("{} has both fps and num_frames: leave one out", where);
  if (!is_list_of_frames(named)) return {};
  if (num_frames > 0)
    return invalid_argument(
        "{}.num_frames is for files of videos, and {} is a list of frames: "
        "leave it out, or say how many of them are a second (fps)",
        where, place);
  size_t count = 0;
  bool has_empty = false;
  for_each_frame(named, [&](std::string_view frame) {
    ++count;
    has_empty |= frame.empty();
  });
  if (count == 0 || count > kVideoFramesMax) {
    return invalid_argument("{} has {} frames, and between 1 and {} are taken", place, count,
                            kVideoFramesMax);
  }
  if (!has_empty) return {};
  return invalid_argument("{} must be a list of the URLs of frames, or of base64", place);
}

// REQUIRES: check_named_video() passes.
PictureSource make_video(const json::value& named, const json::object& options) {
  PictureSource video{.files = {}, .is_video = true};
  const double rate = *rate_of(options, "");
  if (is_list_of_frames(named)) {
    video.frames_per_second = rate;
    for_each_frame(named, [&](std::string_view frame) { video.files.emplace_back(frame); });
    return video;
  }
  video.files.emplace_back(view(named.get_string()));
  video.video_file = {.frames_per_second = rate, .num_frames = *num_frames_of(options, "")};
  return video;
}

Result<std::string> read_within(std::string_view source, const MediaAccess& access,
                                Duration timeout) {
  if (!is_remote(source)) return read_media_source(source, access.limits);
  std::string url(source);
  const size_t scheme_end = url.find(':');
  url.replace(0, scheme_end, in_lower_case(url.substr(0, scheme_end)));
  return fetch_remote(std::move(url), access, timeout);
}

// A picture's file, or that of a video or a sound.
ImageInput file_input(const std::shared_ptr<const MediaAccess>& access, std::string source,
                      int64_t bytes_max) {
  const auto bytes = static_cast<int64_t>(source.size());
  // Shared, because the engine's request may be copied.
  auto kept = std::make_shared<const std::string>(std::move(source));
  const auto read = [access, kept, bytes_max] {
    MediaAccess own = *access;
    own.limits.bytes_max = bytes_max;
    return read_within(*kept, own, own.fetch_timeout);
  };
  return {.read = read, .source_bytes = bytes, .frames = {}};
}

// kVideoPictures times as many bytes as a picture may have.
ImageInput video_file_input(const std::shared_ptr<const MediaAccess>& access,
                            PictureSource source) {
  ImageInput video =
      file_input(access, std::move(source.files[0]), kVideoPictures * access->limits.bytes_max);
  video.video_file = source.video_file;
  return video;
}

// All its frames together are fetched in the time that one picture has, for they come one by one
// and keep a thread.
ImageInput video_input(const std::shared_ptr<const MediaAccess>& access, PictureSource source) {
  ImageInput video{.read = {}, .frames = {}, .frames_per_second = source.frames_per_second};
  auto left = std::make_shared<std::atomic<Duration::rep>>(access->fetch_timeout.count());
  for (std::string& frame : source.files) {
    video.source_bytes += std::ssize(frame);
    auto kept = std::make_shared<const std::string>(std::move(frame));  // shared, as a picture's
    video.frames.emplace_back([access, kept, left] {
      const TimePoint begin = std::chrono::steady_clock::now();
      auto file = read_within(*kept, *access, Duration(left->load()));
      if (is_remote(*kept)) *left -= Duration(std::chrono::steady_clock::now() - begin).count();
      return file;
    });
  }
  return video;
}

}  // namespace

Result<std::string> read_picture(std::string_view source, const MediaAccess& access) {
  return read_within(source, access, access.fetch_timeout);
}

std::shared_ptr<const MediaAccess> media_access(const Context& context) {
  const ServerConfig& config = context.config;
  return std::make_shared<const MediaAccess>(
      MediaAccess{.limits = {.bytes_max = context.engine.config().images.max_image_bytes,
                             .local_folder = config.media.allowed_local_media_path},
                  .sound_bytes_max = context.engine.config().audio.max_audio_bytes,
                  .domains = config.media.allowed_media_domains,
                  .private_addresses = config.media.allow_private_media_addresses,
                  .fetch_timeout = config.media.media_fetch_timeout});
}

std::vector<ImageInput> image_inputs(const std::shared_ptr<const MediaAccess>& access,
                                     std::vector<PictureSource> sources) {
  std::vector<ImageInput> images;
  for (PictureSource& source : sources) {
    if (source.is_video) {
      images.push_back(source.video_file ? video_file_input(access, std::move(source))
                                         : video_input(access, std::move(source)));
      continue;
    }
    const bool is_sound = source.is_sound;
    images.push_back(file_input(access, std::move(source.files.front()),
                                is_sound ? access->sound_bytes_max : access->limits.bytes_max));
    images.back().is_sound = is_sound;
  }
  return images;
}

std::vector<PictureSource> pictures_alone(std::vector<std::string> sources) {
  std::vector<PictureSource> out;
  for (std::string& source : sources) out.emplace_back().files.push_back(std::move(source));
  return out;
}

bool is_picture_part(const json::value& part) {
  const json::value* type = part.is_object() ? part.get_object().if_contains("type") : nullptr;
  return type != nullptr && (*type == "image_url" || *type == "input_image");
}

Result<std::string> picture_source(const json::value& part, std::string_view where) {
  const json::string* url = url_of(part);
  if (url == nullptr || url->empty())
    return fail(invalid_argument(
        "{}.image_url must have the picture's URL, such as data:image/png;base64,DIGITS", where));
  return std::string(view(*url));
}

bool is_video_part(const json::value& part) {
  const json::value* type = part.is_object() ? part.get_object().if_contains("type") : nullptr;
  return type != nullptr && (*type == "video_url" || *type == "video");
}

Status check_video(const json::value& part, std::string_view where) {
  const json::object& object = part.get_object();
  const json::value* named = video_named(object);
  if (named == nullptr) {
    return invalid_argument(
        "{} must have its file as video_url with a url, or its frames as video: [URL, ...] "
        "or video_url: data:video/jpeg;base64,FRAME,FRAME...",
        where);
  }
  return check_named_video(*named, object, where,
                           fmt::format("{}.{}", where, named->is_array() ? "video" : "video_url"));
}

namespace {

const json::object kNoOptions;

const json::object& options_of(const json::value& data) {
  return data.is_object() ? data.get_object() : kNoOptions;
}

const json::value* data_named(const json::value& data) {
  const json::value* url = data.is_object() ? data.get_object().if_contains("url") : &data;
  return url != nullptr && url->is_string() && !url->get_string().empty() ? url : nullptr;
}

}  // namespace

Status check_video_data(const json::value& data, std::string_view where) {
  const json::value* named = data_named(data);
  if (named == nullptr) {
    return invalid_argument(
        "{} must be a video's URL or base64, or {{\"url\": URL, \"fps\": 2}}, "
        "but it is {}",
        where, describe(data));
  }
  return check_named_video(*named, options_of(data), where, where);
}

PictureSource video_data_source(const json::value& data) {
  return make_video(*data_named(data), options_of(data));
}

bool is_sound_part(const json::value& part) {
  const json::value* type = part.is_object() ? part.get_object().if_contains("type") : nullptr;
  return type != nullptr && (*type == "input_audio" || *type == "audio_url");
}

Result<std::string> sound_source(const json::value& part, std::string_view where) {
  const json::object& object = part.get_object();
  for (const auto& [field, member] : {std::pair("input_audio", "data"), {"audio_url", "url"}}) {
    const json::value* sound = object.if_contains(field);
    if (sound != nullptr && sound->is_object()) sound = sound->get_object().if_contains(member);
    if (sound != nullptr && sound->is_string() && !sound->get_string().empty())
      return std::string(view(sound->get_string()));
  }
  return fail(invalid_argument(
      "{} must have the sound's file as input_audio: {{\"data\": BASE64}} or audio_url: "
      "{{\"url\": URL}}",
      where));
}

size_t num_pictures(const json::value& messages) {
  std::ptrdiff_t count = 0;
  for (const json::value& message : messages.get_array()) {
    const json::value* content = message.get_object().if_contains("content");
    if (content == nullptr || !content->is_array()) continue;
    count += std::ranges::count_if(content->get_array(), [](const json::value& part) {
      return is_picture_part(part) || is_video_part(part) || is_sound_part(part);
    });
  }
  return static_cast<size_t>(count);
}

std::vector<PictureSource> picture_sources(const json::value& messages) {
  std::vector<PictureSource> sources;
  for (const json::value& message : messages.get_array()) {
    const json::value* content = message.get_object().if_contains("content");
    if (content == nullptr || !content->is_array()) continue;
    for (const json::value& part : content->get_array())
      if (is_video_part(part)) {
        sources.push_back(make_video(*video_named(part.get_object()), part.get_object()));
      } else if (is_picture_part(part)) {
        sources.emplace_back().files.emplace_back(view(*url_of(part)));
      } else if (is_sound_part(part)) {
        sources.push_back({.files = {*sound_source(part, "")}, .is_sound = true});
      }
  }
  return sources;
}

json::object picture_part(std::string_view source) {
  return {{"type", "image_url"},
          {"image_url", {{"url", json::string(source.data(), source.size())}}}};
}

}  // namespace espalier::server
