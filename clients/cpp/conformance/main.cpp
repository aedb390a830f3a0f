// Checks the generated client against golden vectors and a real worker.
//
//     build/conformance VECTORS.json HOST:PORT
//
// Prints one line for each check; exits with 1 if one failed.

#include <absl/strings/escaping.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "antiphon/v1/dispatch_service.pb.h"
#include "session.h"

using google::protobuf::Message;
namespace util = google::protobuf::util;

static int failures = 0;

static void expect(bool is_true, const std::string& what) {
  if (!is_true) throw Failure(what);
}

static void check(const std::string& name, const std::function<void()>& run) {
  try {
    run();
    std::printf("ok      %s\n", name.c_str());
  } catch (const std::exception& error) {
    failures++;
    std::printf("FAILED  %s\n        %s\n", name.c_str(), error.what());
  }
  std::fflush(stdout);
}

// ------------------------------------------------------------------------------------------ vectors

static google::protobuf::ListValue read_vectors(const std::string& path) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  google::protobuf::ListValue rows;
  if (!util::JsonStringToMessage(text, &rows).ok() || !rows.values_size())
    throw Failure(path + " holds no golden vectors");
  return rows;
}

static std::string serialized(const Message& message) {
  std::string data;
  google::protobuf::io::StringOutputStream stream(&data);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return data;
}

// Decodes the bytes, compares the message with its JSON form, and encodes it again.
static void check_vector(const std::string& type, const google::protobuf::Value& json, const std::string& base64) {
  const auto* descriptor = google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName("antiphon.v1." + type);
  expect(descriptor, "there is no message " + type);
  const Message* prototype = google::protobuf::MessageFactory::generated_factory()->GetPrototype(descriptor);
  std::string data, text;
  expect(absl::Base64Unescape(base64, &data), "the bytes are not base64");
  const std::unique_ptr<Message> decoded(prototype->New()), described(prototype->New());
  expect(decoded->ParseFromString(data), "the bytes cannot be parsed");
  expect(util::MessageToJsonString(json, &text).ok(), "the JSON form cannot be written");
  const auto parsed = util::JsonStringToMessage(text, described.get());
  expect(parsed.ok(), "the JSON form does not fit: " + parsed.ToString());
  expect(util::MessageDifferencer::Equals(*decoded, *described), "the bytes are not what the JSON form says");
  expect(serialized(*decoded) == data, "the message is encoded otherwise");
}

// ----------------------------------------------------------------------------------------- sessions

static std::unique_ptr<Session> ready(pb::InferenceService::Stub& stub) {
  auto session = std::make_unique<Session>(stub);
  session->configure();
  return session;
}

static void expect_ok(Session& session) {
  session.half_close();
  for (const auto& status : session.ended()) expect(status.ok(), "a call ended with: " + status.error_message());
}

// All three calls ended with this status, and with its reason in the details.
static void expect_refused(Session& session, grpc::StatusCode code, const std::string& reason) {
  for (const auto& status : session.ended()) {
    expect(status.error_code() == code, "a call ended with status " + std::to_string(status.error_code()));
    expect(status.error_details().find(reason) != std::string::npos, "no ErrorInfo with " + reason);
  }
}

template <typename Answers>
static std::vector<uint64_t> units(const Answers& answers) {
  std::vector<uint64_t> numbers;
  for (const auto& answer : answers) numbers.push_back(answer.unit());
  return numbers;
}

static std::vector<pb::GenerateResponse> ends(const std::vector<pb::GenerateResponse>& answers) {
  std::vector<pb::GenerateResponse> found;
  std::copy_if(answers.begin(), answers.end(), std::back_inserter(found), [](const auto& one) { return one.has_done(); });
  return found;
}

// Waits for the ends of so many units on Generate.
static std::vector<pb::GenerateResponse> ends(Session& session, size_t count) {
  return ends(session.generate->until([&](const auto& all) { return ends(all).size() >= count; }, "the end of a unit"));
}

static void check_sessions(pb::InferenceService::Stub& stub) {
  check("GetInfo tells of a ready worker", [&] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    pb::GetInfoResponse info;
    const grpc::Status status = stub.GetInfo(&context, {}, &info);
    expect(status.ok(), status.error_message());
    expect(info.state() == pb::WORKER_STATE_READY, "the worker is not ready");
    const auto& modes = info.modes();
    expect(std::find(modes.begin(), modes.end(), pb::SESSION_MODE_AUDIO) != modes.end(), "it has no audio mode");
  });
  check("unit 0 is answered by SessionReady with the values that apply", [&] {
    const auto session = ready(stub);
    const auto effective = session->prefill->all().at(0).ready().effective();
    expect(effective.seed() == 7, "it is another seed");
    expect(effective.duplex().force_listen_count() == 0, "it is another force_listen_count");
    expect_ok(*session);
  });
  check("every unit written ahead has its three answers, in order, and half-closing ends with OK", [&] {
    const auto session = ready(stub);
    for (uint64_t unit = 1; unit <= 6; unit++) {
      session->run(unit);
      if (unit >= 2)
        session->finalize->until([&](const auto& all) { return all.size() >= unit - 1; }, "the end of a unit");
    }
    expect_ok(*session);
    const std::vector<uint64_t> expected{1, 2, 3, 4, 5, 6};
    auto heard = units(session->prefill->all());
    heard.erase(heard.begin());
    expect(heard == expected, "Prefill answered otherwise");
    expect(units(ends(*session, 6)) == expected, "Generate answered otherwise");
    expect(units(session->finalize->all()) == expected, "Finalize answered otherwise");
  });
  check("a unit that cannot be used fails alone", [&] {
    const auto session = ready(stub);
    session->run(1, std::string(3, '\0'));
    session->run(2);
    const auto ended = ends(*session, 2);
    const auto heard = session->prefill->until([](const auto& all) { return all.size() == 3; }, "both answers");
    expect(heard.at(1).error().reason() == "AUDIO_INVALID", "unit 1 did not fail by name");
    expect(heard.at(2).has_prefilled(), "unit 2 was not prefilled");
    expect(ended.at(0).done().end() == pb::UNIT_END_FAILED, "unit 1 did not end as failed");
    expect(ended.at(1).done().end() != pb::UNIT_END_FAILED, "unit 2 failed");
    expect_ok(*session);
  });
  check("a cancel overtakes the unit that it names", [&] {
    const auto session = ready(stub);
    pb::GenerateRequest cancel;
    cancel.set_unit(1);
    cancel.mutable_cancel();
    session->generate->write(cancel);
    session->run(1);
    expect(ends(*session, 1).at(0).done().end() == pb::UNIT_END_CANCELLED, "unit 1 was not cancelled");
    expect_ok(*session);
  });
  check("a gap between units ends all three calls alike", [&] {
    const auto session = ready(stub);
    session->run(2);
    expect_refused(*session, grpc::StatusCode::FAILED_PRECONDITION, "UNIT_OUT_OF_ORDER");
  });
  check("a unit before the config ends all three calls alike", [&] {
    Session session(stub);
    session.run(1);
    expect_refused(session, grpc::StatusCode::FAILED_PRECONDITION, "CONFIG_REQUIRED");
  });
  check("cancelling one call ends the session", [&] {
    const auto session = ready(stub);
    session->contexts[2].TryCancel();
    const auto statuses = session->ended();
    expect(statuses[0].error_code() == grpc::StatusCode::CANCELLED, "Prefill ended otherwise");
    expect(statuses[1].error_code() == grpc::StatusCode::CANCELLED, "Generate ended otherwise");
  });
}

int main(int count, char** given) {
  if (count != 3) {
    std::fprintf(stderr, "Usage: conformance VECTORS.json HOST:PORT\n");
    return 2;
  }
  try {
    int number = 0;
    const auto rows = read_vectors(given[1]);
    for (const auto& row : rows.values()) {
      const auto& fields = row.struct_value().fields();
      const std::string type = fields.at("type").string_value();
      check("vector " + std::to_string(number++) + ": " + type,
            [&] { check_vector(type, fields.at("json"), fields.at("base64").string_value()); });
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  const auto stub = pb::InferenceService::NewStub(grpc::CreateChannel(given[2], grpc::InsecureChannelCredentials()));
  check_sessions(*stub);
  return failures ? 1 : 0;
}
