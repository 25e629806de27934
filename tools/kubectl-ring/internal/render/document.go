package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"
)

// stable includes every field except absent messages, so that scripts find false, 0, and "" in their fields.
var stable = protojson.MarshalOptions{EmitDefaultValues: true}

// JSON writes a message as indented protojson, with the field names of the API in lowerCamelCase.
func JSON(w io.Writer, message proto.Message) error {
	return encode(w, message, func(line []byte) ([]byte, error) {
		var b bytes.Buffer

		err := json.Indent(&b, append(line, '\n'), "", "  ")

		return b.Bytes(), err
	})
}

// JSONLine writes a message as protojson in one line.
func JSONLine(w io.Writer, message proto.Message) error {
	return encode(w, message, func(line []byte) ([]byte, error) { return append(line, '\n'), nil })
}

// YAML writes the message of JSON as YAML.
func YAML(w io.Writer, message proto.Message) error { return encode(w, message, yaml.JSONToYAML) }

// JSONPath writes what a template selects of the message of JSON, as kubectl does: fields that do not exist are empty.
func JSONPath(w io.Writer, template *jsonpath.JSONPath, message proto.Message) error {
	return encode(w, message, func(line []byte) ([]byte, error) {
		var b bytes.Buffer

		err := Select(&b, template, line)

		return b.Bytes(), err
	})
}

// Select writes what a template selects of a JSON text.
func Select(w io.Writer, template *jsonpath.JSONPath, text []byte) error {
	var content any

	err := json.Unmarshal(text, &content)
	if err == nil {
		err = template.Execute(w, content)
	}

	if err != nil {
		return fmt.Errorf("select from the answer: %w", err)
	}

	return nil
}

// encode writes a message in the layout. protojson varies its white space on purpose, so the layout gets compact JSON.
func encode(w io.Writer, message proto.Message, layout func(line []byte) ([]byte, error)) error {
	loose, err := stable.Marshal(message)

	var b bytes.Buffer
	if err == nil {
		err = json.Compact(&b, loose)
	}

	var data []byte
	if err == nil {
		data, err = layout(b.Bytes())
	}

	if err == nil {
		_, err = w.Write(data)
	}

	if err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}

	return nil
}
