// Package codec serialises messages for gRPC with the current protobuf library.
//
// The gRPC of Debian 12 calls an older library, which does not know messages that protoc-gen-go 1.28 generates.
package codec

import (
	"fmt"

	"google.golang.org/protobuf/proto"
)

// Proto is an encoding.Codec, for grpc.ForceCodec.
type Proto struct{}

// Marshal serialises a message.
func (Proto) Marshal(value interface{}) ([]byte, error) {
	message, ok := value.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a message", value)
	}
	return proto.Marshal(message)
}

// Unmarshal parses a message.
func (Proto) Unmarshal(data []byte, value interface{}) error {
	message, ok := value.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a message", value)
	}
	return proto.Unmarshal(data, message)
}

// Name is that of the content type: application/grpc+proto.
func (Proto) Name() string { return "proto" }
