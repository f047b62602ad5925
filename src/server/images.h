// Pictures of requests: what the parts of messages name, and where the server reads it.
//
//   data:image/png;base64,...   the picture itself, as is bare base64
//   https://, http://           hosts of --allowed-media-domains, at public addresses
//   file:///...                 files below --allowed-local-media-path
//
// Reading is the engine's: its threads for pictures call ImageInput::read, so that neither an I/O
// thread nor the scheduler waits for a client's server.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/requests/request.h"
#include "media/source.h"

namespace espalier::server {

struct Context;

// Immutable; shared with the pictures that wait, which may outlive their server.
struct MediaAccess {
  MediaSourceLimits limits;  // of a picture
  int64_t sound_bytes_max = int64_t{64} << 20;
  std::vector<std::string> domains;  // "example.com", "*.example.com" (what ends so) or "*"
  bool private_addresses = false;    // hosts may have addresses that are not public
  // Of a picture, redirects included, or of all frames of a video.
  Duration fetch_timeout = std::chrono::seconds(10);
};

// What a part of a message names.
struct PictureSource {
  std::vector<std::string>
      files;  // URLs or base64: of a picture one, of a video one for each frame
  bool is_video = false;
  double frames_per_second = 0;                  // of a list of frames; 0: it is not known
  std::optional<VideoSampling> video_file = {};  // files[0] is that of a video
  bool is_sound = false;                         // files[0] is that of a sound
};

// Blocks. Fails with kInvalidArgument for what is malformed, too large or cannot be had, and
// kPermissionDenied for a host, an address or a file that is not allowed. Thread-safe.
Result<std::string> read_picture(std::string_view source, const MediaAccess& access);

// As the server's settings state it.
std::shared_ptr<const MediaAccess> media_access(const Context& context);
// The sources are read later, by the engine's threads.
std::vector<ImageInput> image_inputs(const std::shared_ptr<const MediaAccess>& access,
                                     std::vector<PictureSource> sources);
// Each the source of a picture.
std::vector<PictureSource> pictures_alone(std::vector<std::string> sources);

// Whether a part of a message is a picture: image_url, input_image.
bool is_picture_part(const boost::json::value& part);
// Its URL, or base64. kInvalidArgument where it has none.
Result<std::string> picture_source(const boost::json::value& part, std::string_view where);
// Whether it is a video: video_url or video, with the URL of a file, or base64; with
// data:video/jpeg;base64,FRAME,FRAME...; or with a list of the sources of its frames. "fps" says of
// a list how many of its frames are a second, if that is known, and of a file how many are read;
// "num_frames" how many frames of a file.
bool is_video_part(const boost::json::value& part);
// kInvalidArgument for a part that is malformed.
Status check_video(const boost::json::value& part, std::string_view where);
// The same of what an entry of video_data names: a string, or an object with "url" and options.
Status check_video_data(const boost::json::value& data, std::string_view where);
PictureSource video_data_source(const boost::json::value& data);  // REQUIRES: it is checked
// Whether it is a sound: input_audio, with base64 in "data", or audio_url, with a URL.
bool is_sound_part(const boost::json::value& part);
// Its URL, or base64. kInvalidArgument where it has none.
Result<std::string> sound_source(const boost::json::value& part, std::string_view where);
// Of checked messages, videos and sounds included.
size_t num_pictures(const boost::json::value& messages);
// The pictures, videos and sounds of checked messages, in the order in which a template renders
// them.
std::vector<PictureSource> picture_sources(const boost::json::value& messages);
// An image_url part.
boost::json::object picture_part(std::string_view source);

}  // namespace espalier::server
