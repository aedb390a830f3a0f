package main

import (
	"encoding/json"
	"os"

	pb "antiphon/v1"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// vector is a message in proto3 JSON and in bytes, shared with the clients in other languages.
type vector struct {
	Type   string          `json:"type"`
	JSON   json.RawMessage `json:"json"`
	Base64 []byte          `json:"base64"`
}

var _ = pb.File_antiphon_v1_common_proto // registers the messages

func readVectors(path string) ([]vector, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var rows []vector
	return rows, json.Unmarshal(data, &rows)
}

// check decodes the bytes, compares the message with its JSON form, and encodes it again. Go writes the fields
// of a oneof behind the others, so the bytes may come in another order.
func (row vector) check() {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("antiphon.v1." + row.Type))
	expect(err == nil, "there is no message %s", row.Type)
	decoded, described := kind.New().Interface(), kind.New().Interface()
	err = proto.Unmarshal(row.Base64, decoded)
	expect(err == nil, "the bytes cannot be parsed: %v", err)
	err = protojson.Unmarshal(row.JSON, described)
	expect(err == nil, "the JSON form does not fit: %v", err)
	expect(proto.Equal(decoded, described), "the bytes are not what the JSON form says")
	data, err := proto.Marshal(decoded)
	expect(err == nil && len(data) == len(row.Base64), "the message is encoded otherwise")
	again := kind.New().Interface()
	err = proto.Unmarshal(data, again)
	expect(err == nil && proto.Equal(again, described), "the message is encoded as another one")
}
