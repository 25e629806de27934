package transport

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// codec does not decode messages with many fields. In a request, an empty entry of a list has 2 bytes, and in memory 100.
type codec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	message := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer message.Free()

	rest := message.ReadOnlyData()
	for fields := 1; len(rest) > 0; fields++ {
		_, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			break // the codec knows what is wrong
		}

		if fields > maxFields {
			return fmt.Errorf("the message has more than %d fields", maxFields)
		}

		rest = rest[n:]
	}

	return c.CodecV2.Unmarshal(mem.BufferSlice{message}, v) //nolint:wrapcheck // gRPC wraps it
}
