package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// stable writes every field but absent messages, so that scripts find false, 0 and "" where they look for them.
var stable = protojson.MarshalOptions{EmitDefaultValues: true}

// compact returns a message as JSON in one line. protojson varies its white space on purpose; this does not.
func compact(message proto.Message) ([]byte, error) {
	loose, err := stable.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("write the answer as JSON: %w", err)
	}
	var b bytes.Buffer
	if err := json.Compact(&b, loose); err != nil {
		return nil, fmt.Errorf("write the answer as JSON: %w", err)
	}
	return b.Bytes(), nil
}

// JSON writes a message as protojson, indented, with the field names of the API in lowerCamelCase.
func JSON(w io.Writer, message proto.Message) error {
	data, err := compact(message)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, data, "", "  "); err != nil {
		return fmt.Errorf("indent the answer: %w", err)
	}
	b.WriteByte('\n')
	return write(w, b.Bytes())
}

// JSONLine writes a message as protojson in one line.
func JSONLine(w io.Writer, message proto.Message) error {
	data, err := compact(message)
	if err != nil {
		return err
	}
	return write(w, append(data, '\n'))
}

// YAML writes what JSON would write, as YAML.
func YAML(w io.Writer, message proto.Message) error {
	data, err := compact(message)
	if err != nil {
		return err
	}
	out, err := yaml.JSONToYAML(data)
	if err != nil {
		return fmt.Errorf("write the answer as YAML: %w", err)
	}
	return write(w, out)
}

func write(w io.Writer, data []byte) error {
	if _, err := w.Write(data); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}
