package command

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
)

// Formats of answers.
const (
	asTable = ""
	asWide  = "wide"
	asJSON  = "json"
	asYAML  = "yaml"
	asName  = "name"
	// asPath is followed by a template. It selects fields of the message that asJSON prints.
	asPath = "jsonpath="
)

// output prints the answer of a command.
type output struct {
	app       *app
	format    string
	noHeaders bool
	formats   []string
	template  *jsonpath.JSONPath // with asPath
	documents int
}

// addOutput adds the output flags to a command. formats are those that it supports in addition to the table.
func (a *app) addOutput(cmd *cobra.Command, formats ...string) *output {
	if slices.Contains(formats, asJSON) {
		formats = append(formats, asPath)
	}

	o := &output{app: a, formats: formats}
	flags := cmd.Flags()
	flags.StringVarP(&o.format, "output", "o", "", fmt.Sprintf("`format` of the answer: %s", join(formats)))
	flags.BoolVar(&o.noHeaders, "no-headers", false, "print only the rows of tables")
	complete(cmd, "output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	check := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.parse(); err != nil {
			return err
		}

		return check(cmd, args)
	}

	return o
}

// parse checks the format.
func (o *output) parse() error {
	text, isPath := strings.CutPrefix(o.format, asPath)

	switch {
	case o.format == asTable:
		return nil
	case !isPath || !slices.Contains(o.formats, asPath):
		return oneOf("--output", o.format, o.formats)
	}

	o.template = jsonpath.New("output").AllowMissingKeys(true)
	if err := o.template.Parse(text); text == "" || err != nil {
		return failure.New("write it as in jsonpath='{.ring.name}', with the fields that -o json prints", "--output: %q is not a template: %w",
			text, cmp.Or(err, errors.New("it is empty")))
	}

	return nil
}

// join formats a list such as "a, b or c".
func join(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}

	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// wide reports whether to print all columns.
func (o *output) wide() bool { return o.format == asWide }

// forProgram reports whether to print the message of the API.
func (o *output) forProgram() bool {
	return o.format == asJSON || o.format == asYAML || o.template != nil
}

// document prints a message of the API. YAML documents are separated by a line of dashes.
func (o *output) document(message proto.Message) error {
	text, err := render.JSON(message)
	if err != nil {
		return err
	}

	return o.emit(text)
}

// line prints one of many messages of the API. JSON is printed in one line.
func (o *output) line(message proto.Message) error {
	text, err := render.JSON(message)

	switch {
	case err != nil:
		return err
	case o.format == asJSON:
		return o.write(append(text, '\n'))
	case o.template != nil:
		defer fmt.Fprintln(o.app.Out)
	}

	return o.emit(text)
}

// emit prints a document in the format for programs. text is compact JSON.
func (o *output) emit(text []byte) error {
	var (
		b       bytes.Buffer
		content any
		err     error
	)

	o.documents++

	switch {
	case o.template != nil: // as in kubectl, fields that do not exist are empty
		if err = json.Unmarshal(text, &content); err == nil {
			err = o.template.Execute(&b, content)
		}
	case o.format == asJSON:
		err = json.Indent(&b, append(text, '\n'), "", "  ")
	default:
		if o.documents > 1 {
			b.WriteString("---\n")
		}

		text, err = yaml.JSONToYAML(text)
		b.Write(text)
	}

	if err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}

	return o.write(b.Bytes())
}

func (o *output) write(text []byte) error {
	if _, err := o.app.Out.Write(text); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}

	return nil
}

// table returns an empty table. wide columns come after the others.
func (o *output) table(columns []string, wide ...string) *render.Table {
	if o.wide() {
		columns = slices.Concat(columns, wide)
	}

	table := &render.Table{W: o.app.Out, Colour: o.app.colour}
	if !o.noHeaders {
		table.Header(columns...)
	}

	return table
}

// paint returns the text in the style if colours are enabled.
func (a *app) paint(style render.Style, text string) string { return style.Paint(text, a.colour) }
