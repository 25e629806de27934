package command

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
)

// Formats of answers.
const (
	asTable = ""
	asWide  = "wide"
	asJSON  = "json"
	asYAML  = "yaml"
	asName  = "name"
)

// output prints the answer of a command.
type output struct {
	app       *app
	format    string
	noHeaders bool
	formats   []string
	documents int
}

// addOutput adds the output flags to a command. formats are those that it supports in addition to the table.
func (a *app) addOutput(cmd *cobra.Command, formats ...string) *output {
	o := &output{app: a, formats: formats}
	flags := cmd.Flags()
	flags.StringVarP(&o.format, "output", "o", "", fmt.Sprintf("`format` of the answer: %s", join(formats)))
	flags.BoolVar(&o.noHeaders, "no-headers", false, "print only the rows of tables")
	complete(cmd, "output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	check := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.format != asTable {
			if err := oneOf("--output", o.format, o.formats); err != nil {
				return err
			}
		}

		return check(cmd, args)
	}

	return o
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
func (o *output) forProgram() bool { return o.format == asJSON || o.format == asYAML }

// document prints a message of the API. YAML documents are separated by a line of dashes.
func (o *output) document(message proto.Message) error {
	o.documents++
	if o.format == asJSON {
		return render.JSON(o.app.Out, message)
	}

	if o.documents > 1 {
		fmt.Fprintln(o.app.Out, "---")
	}

	return render.YAML(o.app.Out, message)
}

// line prints one of many messages of the API. JSON is printed in one line.
func (o *output) line(message proto.Message) error {
	if o.format == asJSON {
		return render.JSONLine(o.app.Out, message)
	}

	return o.document(message)
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
