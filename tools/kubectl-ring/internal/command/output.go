package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
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
	documents int
}

// addOutput adds the output flags to a command. formats are those that it supports in addition to the table.
func (a *app) addOutput(cmd *cobra.Command, formats ...string) *output {
	o := &output{app: a}
	flags := cmd.Flags()
	flags.StringVarP(&o.format, "output", "o", "", fmt.Sprintf("`format` of the answer: %s", join(formats)))
	flags.BoolVar(&o.noHeaders, "no-headers", false, "print only the rows of tables")
	complete(cmd, "output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	check := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.format != asTable {
			if err := oneOf("--output", o.format, formats); err != nil {
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
func (o *output) forProgram() bool {
	return o.format == asJSON || o.format == asYAML
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
	default:
		return o.emit(text)
	}
}

// emit prints a document in the format for programs. text is compact JSON.
func (o *output) emit(text []byte) error {
	var (
		b   bytes.Buffer
		err error
	)

	o.documents++

	if o.format == asJSON {
		err = json.Indent(&b, append(text, '\n'), "", "  ")
	} else {
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

// word formats the value of an enum for people: SHARD_STATE_READY is "ready". An unknown value is formatted as its
// number. The unspecified value is empty.
func word(value interface{ String() string }, prefix string) string {
	name, ok := strings.CutPrefix(value.String(), prefix+"_")
	if !ok {
		return "value " + value.String()
	}

	if name == "UNSPECIFIED" {
		return ""
	}

	return strings.ToLower(strings.ReplaceAll(name, "_", " "))
}

func roleWord(role pb.Role) string { return word(role, "ROLE") }

// coverage formats whether a ring shards the objects of a namespace.
func coverage(c pb.NamespaceCoverage) render.Cell {
	if c == pb.NamespaceCoverage_NAMESPACE_COVERAGE_COVERED {
		return yes(true)
	}

	return styled(word(c, "NAMESPACE_COVERAGE"))
}

func nextWord(next pb.NextStep) string { return word(next, "NEXT_STEP") }

// shardState returns the state of a shard's Lease; "stopping" if the Lease reports that the shard stops, "inactive" if
// enough others are active, and "released" if the shard has stopped by itself, which is no reason to worry.
func shardState(shard *pb.Shard) render.Cell {
	if shard.GetStandby() && shard.GetState() == pb.ShardState_SHARD_STATE_READY {
		return styled("inactive")
	}

	if shard.GetStopping() && shard.GetState() == pb.ShardState_SHARD_STATE_READY {
		return styled("stopping")
	}

	if s := shard.GetState(); shard.GetHolder() == "" &&
		(s == pb.ShardState_SHARD_STATE_DEAD || s == pb.ShardState_SHARD_STATE_ORPHANED) {
		return styled("released")
	}

	return styled(word(shard.GetState(), "SHARD_STATE"))
}

func assignmentState(state pb.AssignmentState) render.Cell {
	return styled(word(state, "ASSIGNMENT_STATE"))
}

// styles are those of words; others are plain.
var styles = map[string]render.Style{
	"ready": render.Good, "inactive": render.Good, "stopping": render.Warn, "expired": render.Warn,
	"uncertain": render.Warn, "dead": render.Bad, "orphaned": render.Bad,
	"assigned": render.Good, "misplaced": render.Warn, "draining": render.Warn,
	"dead shard": render.Bad, "unassigned": render.Bad, "foreign": render.Bad,
	"unknown": render.Warn,
}

func styled(word string) render.Cell { return styles[word].In(word) }

// keyText formats a partition key as it is hashed, or what it stands for.
func keyText(key *pb.PartitionKey) string {
	switch key.GetType() { //nolint:exhaustive // the others are names
	case pb.KeyType_KEY_TYPE_NAMESPACE:
		return "namespace " + key.GetName()
	case pb.KeyType_KEY_TYPE_LABEL:
		return "label " + qualifiedLabel(key) + "=" + key.GetName()
	}

	return strings.Join([]string{key.GetGroup(), key.GetKind(), key.GetNamespace(), key.GetName()}, "/")
}

// qualifiedLabel returns the label of a key by a label.
func qualifiedLabel(key *pb.PartitionKey) string {
	if key.GetGroup() == "" {
		return key.GetNamespace()
	}

	return key.GetGroup() + "/" + key.GetNamespace()
}

func yes(b bool) render.Cell {
	if b {
		return render.Good.In("yes")
	}

	return render.Bad.In("no")
}

// qualified formats a resource with its group, as kubectl does.
func qualified(group, resource string) string {
	return schema.GroupResource{Group: group, Resource: resource}.String()
}

func namespaced(namespace, name string) string {
	if namespace == "" {
		return name
	}

	return namespace + "/" + name
}

// resources formats the resources of a ring, each main resource with its controlled resources.
func resources(ring *pb.Ring) string {
	var b strings.Builder

	inside := false // of the parentheses behind a main resource

	for i, r := range ring.GetResources() {
		controlled := i > 0 && r.GetRole() == pb.Role_ROLE_CONTROLLED

		switch {
		case i == 0:
		case controlled && !inside:
			b.WriteString(" (controls ")
		case inside && !controlled:
			b.WriteString("), ")
		default:
			b.WriteString(", ")
		}

		inside = controlled
		b.WriteString(qualified(r.GetGroup(), r.GetResource()))

		switch r.GetKeyType() { //nolint:exhaustive // the others are the rule
		case pb.KeyType_KEY_TYPE_NAMESPACE:
			b.WriteString(" by namespace")
		case pb.KeyType_KEY_TYPE_LABEL:
			b.WriteString(" by label " + r.GetKeyLabel())
		}
	}

	if inside {
		b.WriteString(")")
	}

	return b.String()
}

// age formats how long ago a time was.
func (a *app) age(since *timestamppb.Timestamp) string {
	if !since.IsValid() {
		return ""
	}

	return duration.HumanDuration(max(a.Clock.Since(since.AsTime()), 0))
}

// renewed formats how long ago a Lease was renewed.
func renewed(shard *pb.Shard) string {
	if shard.GetRenewalAge() == nil {
		return ""
	}

	text := human(shard.GetRenewalAge()) + " ago"
	if shard.GetAgeIsLowerBound() {
		return "at least " + text
	}

	return text
}

func human(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}

	return duration.HumanDuration(d.AsDuration().Round(time.Second))
}

// condition returns a condition of a ring. Nil: the ring has no condition of this type.
func condition(ring *pb.Ring, kind string) *pb.Condition {
	for _, c := range ring.GetConditions() {
		if c.GetType() == kind {
			return c
		}
	}

	return nil
}

func conditionCell(c *pb.Condition) render.Cell {
	switch {
	case c == nil:
		return render.Warn.In("not reported")
	case c.GetStatus() == "True":
		return render.Good.In("True")
	case c.GetStatus() == "False":
		return render.Bad.In(fmt.Sprintf("False (%s)", c.GetReason()))
	default:
		return render.Warn.In(fmt.Sprintf("%s (%s)", c.GetStatus(), c.GetReason()))
	}
}
