package command

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/kinds"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
)

func (a *app) explain() *cobra.Command {
	var (
		o    *output
		ring string
	)

	cmd := &cobra.Command{
		Use:   "explain (TYPE/NAME | TYPE NAME) [flags]",
		Short: "Explain where an object is, where it belongs, why, and what happens next",
		Long: `Explain where an object is, where it belongs, why, what happens next, and who does it.

Marks: ✓ as expected, ! in progress or worth knowing, ✗ someone has to act.

Exit codes: 0 all findings are marked ✓, 1 there is a finding marked ! or ✗, 2 the query failed.`,
		Example: `  kubectl ring explain websites/blog -n team-a
  kubectl ring explain cm blog -n team-a -o wide
  kubectl ring explain websites/blog -o json | jq -r '.findings[].reason'
  until kubectl ring explain websites/blog >/dev/null; do sleep 1; done`,
		Args:              arguments(1, 2),
		ValidArgsFunction: a.completeType,
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := a.explainRequest(args)
			if err != nil {
				return err
			}

			req.Ring = ring

			return a.ask(cmd.Context(), func(s *asker) error {
				return a.explainObject(cmd.Context(), s, o, req)
			})
		},
	}
	cmd.Flags().StringVar(&ring, "ring", "", "`ring` to explain; by default, every ring that is related to the object")
	complete(cmd, "ring", a.completeRing)
	o = a.addOutput(cmd, asWide, asJSON, asYAML)

	return cmd
}

func (a *app) explainRequest(args []string) (*pb.ExplainRequest, error) {
	objects, err := kinds.Parse(args)
	if err != nil {
		return nil, err
	}

	if len(objects) != 1 {
		return nil, failure.New("explain each object separately", "explain takes one object, not %d", len(objects))
	}

	namespace, err := a.namespace()
	if err != nil {
		return nil, err
	}

	mapper, err := a.mapper()
	if err != nil {
		return nil, err
	}

	kind, err := kinds.Resolve(mapper, objects[0].Type)
	if err != nil {
		return nil, err
	}

	return &pb.ExplainRequest{Object: kind.Reference(namespace, objects[0].Name)}, nil
}

func (a *app) explainObject(ctx context.Context, s *asker, o *output, req *pb.ExplainRequest) error {
	res, err := s.Explain(ctx, req)
	if err != nil {
		return err
	}

	if o.forProgram() {
		err = o.document(res)
	} else {
		err = a.printExplanation(o, res)
	}

	if err == nil && !res.GetHealthy() {
		return errProblem
	}

	return err
}

func (a *app) printExplanation(o *output, res *pb.ExplainResponse) error {
	if !o.noHeaders {
		a.printObject(res.GetObject())
	}

	if o.wide() {
		for _, ring := range res.GetRings() {
			if err := a.printRingExplanation(ring); err != nil {
				return err
			}
		}
	}

	if !o.noHeaders {
		fmt.Fprintln(a.Out)
	}

	rings := map[string]bool{}

	for _, finding := range res.GetFindings() {
		if finding.GetRing() != "" {
			rings[finding.GetRing()] = true
		}
	}

	for _, finding := range res.GetFindings() {
		a.printFinding(finding, len(rings) > 1)
	}

	return nil
}

func (a *app) printObject(object *pb.ExplainedObject) {
	var facts []string

	fact := func(text string) {
		if text != "" {
			facts = append(facts, failure.Clean(text))
		}
	}
	fact(qualified(object.GetGroup(), object.GetResource()))

	if object.GetCreateTime() != nil {
		fact("created " + a.age(object.GetCreateTime()) + " ago")
	}

	if object.GetController() != "" {
		fact("controlled by " + object.GetController())
	}

	if object.GetDeleting() {
		fact("being deleted")
	}

	if object.GetFound() != pb.Found_FOUND_YES {
		fact(word(object.GetFound(), "FOUND") + ": it was not read")
	}

	name := failure.Clean(object.GetKind() + " " + namespaced(object.GetNamespace(), object.GetName()))
	fmt.Fprintf(a.Out, "%s  %s\n", a.paint(render.Bold, name), a.paint(render.Dim, strings.Join(facts, ", ")))
}

func (a *app) printRingExplanation(ring *pb.RingExplanation) error {
	fmt.Fprintf(a.Out, "\n%s\n", a.paint(render.Bold, "Ring "+failure.Clean(ring.GetRing())))
	table := &render.Table{W: a.Out, Colour: a.colour}
	row := func(name string, value any) { table.Row("  "+name, value) }
	row("covered", covered(ring))

	if assignment := ring.GetAssignment(); assignment != nil {
		row("state", assignmentState(assignment.GetState()))
		row("is at", shardText(assignment.GetShard(), ring.GetActualShard()))
		row("belongs to", shardText(assignment.GetDesiredShard(), ring.GetDesiredShard()))

		if assignment.GetDrainTime() != nil {
			row("drained since", a.age(assignment.GetDrainTime()))
		}
	}

	if owner := ring.GetOwner(); owner != nil {
		row("owner", ownerText(owner))
	}

	if at := ring.GetLocation(); at != nil {
		row("key", keyText(at.GetPartitionKey()))
		row("hash, partition", fmt.Sprintf("%d, %d", at.GetHash(), at.GetPartition()))
		row("next shards", strings.Join(at.GetNextShards(), ", "))
		row("fingerprint", at.GetFingerprint())
	}

	next := nextWord(ring.GetNext())
	if ring.GetNextActor() != "" {
		next += ", by " + ring.GetNextActor()
	}
	row("next", next)

	return table.Flush()
}

func covered(ring *pb.RingExplanation) string {
	text := "no"
	if ring.GetCovered() {
		text = "yes"
	}

	if role := roleWord(ring.GetRole()); role != "" {
		return text + ", as a " + role + " resource"
	}

	return text + ", the ring does not list the resource"
}

func shardText(name string, lease *pb.Shard) string {
	switch {
	case name == "":
		return "no shard"
	case lease == nil:
		return name + ", which has no Lease"
	}

	text := name + ", " + shardState(lease).Text
	if lease.GetHolder() != name {
		text += ", held by " + holder(lease)
	}

	if lease.GetRenewalAge() != nil {
		text += ", renewed " + renewed(lease)
	}

	return text
}

func holder(lease *pb.Shard) string {
	if lease.GetHolder() == "" {
		return "nobody"
	}

	return lease.GetHolder()
}

func ownerText(owner *pb.ExplainedOwner) string {
	text := namespaced(owner.GetNamespace(), owner.GetResource()+"/"+owner.GetName())
	switch {
	case owner.GetFound() == pb.Found_FOUND_NO:
		return text + ", which does not exist"
	case owner.GetFound() != pb.Found_FOUND_YES:
		return text + ", which was not read"
	case owner.GetShard() == "":
		return text + ", at no shard"
	case owner.GetDraining():
		return text + ", at " + owner.GetShard() + ", which was asked to release it"
	default:
		return text + ", at " + owner.GetShard()
	}
}

// printFinding prints a finding. If there are several rings, it includes the ring.
func (a *app) printFinding(finding *pb.Finding, several bool) {
	mark, style := "?", render.Plain

	switch finding.GetSeverity() {
	case pb.Severity_SEVERITY_INFO:
		mark, style = "✓", render.Good
	case pb.Severity_SEVERITY_WARNING:
		mark, style = "!", render.Warn
	case pb.Severity_SEVERITY_ERROR:
		mark, style = "✗", render.Bad
	default:
	}

	text := failure.Clean(finding.GetMessage())
	if several && finding.GetRing() != "" {
		text = "[" + failure.Clean(finding.GetRing()) + "] " + text
	}
	fmt.Fprintf(a.Out, "%s %s %s\n", a.paint(style, mark), text,
		a.paint(render.Dim, "("+failure.Clean(finding.GetReason())+")"))

	if finding.GetAdvice() != "" {
		fmt.Fprintf(a.Out, "  → %s\n", failure.Clean(finding.GetAdvice()))
	}
}
