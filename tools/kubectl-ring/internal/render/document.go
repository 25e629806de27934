package render

import (
	"bytes"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// stable includes every field except absent messages, so that scripts find false, 0, and "" in their fields.
var stable = protojson.MarshalOptions{EmitDefaultValues: true}

// JSON returns a message as protojson, with the field names of the API in lowerCamelCase. It is compact, because protojson varies its white
// space on purpose.
func JSON(message proto.Message) ([]byte, error) {
	var b bytes.Buffer

	loose, err := stable.Marshal(message)
	if err == nil {
		err = json.Compact(&b, loose)
	}

	if err != nil {
		return nil, fmt.Errorf("write the answer: %w", err)
	}

	return b.Bytes(), nil
}
