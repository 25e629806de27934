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

// output is how a command prints its answer.
type output struct {
	app       *app
	format    string
	noHeaders bool
	formats   []string
	documents int
}

// addOutput gives a command the flags of its output. formats are those that it knows besides its table.
func (a *app) addOutput(cmd *cobra.Command, formats ...string) *output {
	o := &output{app: a, formats: formats}
	flags := cmd.Flags()
	flags.StringVarP(&o.format, "output", "o", "", fmt.Sprintf("`format` of the answer: %s", join(formats)))
	flags.BoolVar(&o.noHeaders, "no-headers", false, "print the rows of tables alone")
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

// join writes a list as in "a, b or c".
func join(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// wide reports whether all columns are wanted.
func (o *output) wide() bool { return o.format == asWide }

// forProgram reports whether the answer itself is wanted.
func (o *output) forProgram() bool { return o.format == asJSON || o.format == asYAML }

// document prints an answer for a program. Several follow one another: as JSON one after the other, as YAML with a line of
// dashes between them.
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

// line prints one of many answers for a program: as JSON in one line.
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

// paint returns the text in the style if colours are wanted.
func (a *app) paint(style render.Style, text string) string { return style.Paint(text, a.colour) }
