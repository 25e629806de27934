package command

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/kinds"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
)

// stateNames are the states on the command line, from good to bad.
var stateNames = []string{"assigned", "misplaced", "draining", "dead-shard", "unassigned", "foreign"}

// stateOf returns the state with the name.
func stateOf(name string) pb.AssignmentState {
	return pb.AssignmentState(pb.AssignmentState_value["ASSIGNMENT_STATE_"+strings.ToUpper(strings.ReplaceAll(name, "-",
		"_"))])
}

// listing is the command assignments with its flags.
type listing struct {
	app   *app
	out   *output
	shard string
	state []string
	all   bool
	chunk int32
	known []string // the shards of the ring
	seen  bool     // there was a row
}

func (a *app) assignments() *cobra.Command {
	l := &listing{app: a}
	cmd := &cobra.Command{
		Use:     "assignments RING [RESOURCE] [flags]",
		Aliases: []string{"assignment", "objects"},
		Short:   "List the objects of a ring, and where they are",
		Long: `List the objects of a ring, and where they are, for all resources of the ring or for one.

RESOURCE is a resource of the ring. Specify its plural name or its kind and, if necessary, its group after a dot. The objects of
all namespaces are listed, unless -n names a namespace. If a resource cannot be listed, such as a cluster-scoped one with -n, the
others still are.

States:
  assigned     the object is at the shard to which it belongs
  misplaced    the object is at a live shard, but belongs to another
  draining     the shard of the object was asked to release it
  dead-shard   the object has the label of a shard that is not available
  unassigned   the object has no shard
  foreign      the object has labels of the ring, but the ring does not cover it

Rows are printed page by page. With one resource, -o json and -o yaml print one ListAssignmentsResponse with all objects.`,
		Example: `  kubectl ring assignments example
  kubectl ring assignments example websites -n team-a
  kubectl ring assignments example --shard shard-1 --state draining
  kubectl ring assignments example --state unassigned --state dead-shard --no-headers | wc -l
  kubectl ring assignments example websites -n team-a --state misplaced -o name | xargs kubectl get -n team-a`,
		Args:              arguments(1, 2),
		ValidArgsFunction: a.completeRingThenResource,
		RunE: func(cmd *cobra.Command, args []string) error {
			return l.run(cmd.Context(), args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&l.shard, "shard", "", "list only objects with the label of this `shard`")
	flags.StringSliceVar(&l.state, "state", nil,
		"list only objects in this `state`; may be repeated: "+strings.Join(stateNames, ", "))
	flags.BoolVarP(&l.all, "all-namespaces", "A", false,
		"list the objects of all namespaces, which is the default without -n")
	flags.Int32Var(&l.chunk, "chunk-size", 500, "`number` of objects that the server reads per page, at most 5000")
	complete(cmd, "shard", a.completeShardOfArgument)
	complete(cmd, "state", cobra.FixedCompletions(stateNames, cobra.ShellCompDirectiveNoFileComp))
	l.out = a.addOutput(cmd, asWide, asJSON, asYAML, asName)

	return cmd
}

func (l *listing) run(ctx context.Context, args []string) error {
	req := &pb.ListAssignmentsRequest{Ring: args[0], Shard: l.shard, PageSize: l.chunk}
	for _, name := range l.state {
		if err := oneOf("--state", name, stateNames); err != nil {
			return err
		}

		req.States = append(req.States, stateOf(name))
	}

	if !l.all {
		req.Namespace = *l.app.kube.Namespace
	}

	return l.app.ask(ctx, func(s *asker) error {
		ring, err := s.GetRing(ctx, &pb.GetRingRequest{Name: args[0]})
		if err != nil {
			return err
		}

		resources, err := l.resources(ring.GetRing(), args[1:])
		if err != nil {
			return err
		}

		l.known = names(ring.GetShards())

		if l.out.forProgram() {
			return l.documents(ctx, s, req, resources)
		}

		return l.rows(ctx, s, req, resources)
	})
}

// nothing reports that no object matches. A shard that the ring does not have may have objects; without any, its name
// is a mistake.
func (l *listing) nothing() error {
	if l.shard != "" && !slices.Contains(l.known, l.shard) {
		return failure.New("name one of "+strings.Join(l.known, ", "),
			"--shard: the ring has no shard %q, and no object has its label", l.shard)
	}

	fmt.Fprintln(l.app.Err, "No object matches.")

	return nil
}

// resources returns the named resource, or all resources of the ring.
func (l *listing) resources(ring *pb.Ring, named []string) ([]*pb.RingResource, error) {
	if len(named) == 0 {
		all := ring.GetResources()
		if l.out.forProgram() && len(all) > 1 {
			return nil, failure.New("name one of "+resources(ring), "-o %s is for one resource, and ring %s has %d",
				l.out.format, ring.GetName(), len(all))
		}

		return all, nil
	}

	var found []*pb.RingResource

	for _, r := range ring.GetResources() {
		if means(named[0], r) {
			found = append(found, r)
		}
	}

	switch len(found) {
	case 0:
		return l.asCluster(ring, named[0])
	case 1:
		return found, nil
	default:
		return nil, failure.New("write its group after a dot", "ring %s has several resources %s: %s", ring.GetName(),
			named[0], resources(ring))
	}
}

// means reports whether the written name is a name of the resource.
func means(written string, r *pb.RingResource) bool {
	names := []string{r.GetResource(), qualified(r.GetGroup(), r.GetResource())}
	if r.GetKind() != "" {
		names = append(names, r.GetKind(), qualified(r.GetGroup(), r.GetKind()))
	}

	return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, written) })
}

// asCluster resolves a name with the API server, which knows short names.
func (l *listing) asCluster(ring *pb.Ring, written string) ([]*pb.RingResource, error) {
	unknown := failure.New("name one of "+resources(ring), "ring %s does not list %s", ring.GetName(), written)

	mapper, err := l.app.mapper()
	if err != nil || mapper == nil {
		return nil, unknown
	}

	kind, err := kinds.Resolve(mapper, written)
	if err != nil {
		return nil, unknown
	}

	for _, r := range ring.GetResources() {
		if r.GetGroup() == kind.Group && r.GetResource() == kind.Resource {
			return []*pb.RingResource{r}, nil
		}
	}

	return nil, unknown
}

// pages calls page with every page of the objects of a resource.
func pages(
	ctx context.Context, s *asker, req *pb.ListAssignmentsRequest, page func(*pb.ListAssignmentsResponse) error,
) error {
	req.PageToken = ""
	for {
		res, err := s.ListAssignments(ctx, req)
		if err != nil {
			return err
		}

		if err := page(res); err != nil {
			return err
		}

		if req.PageToken = res.GetNextPageToken(); req.GetPageToken() == "" {
			return nil
		}
	}
}

func (l *listing) documents(
	ctx context.Context, s *asker, req *pb.ListAssignmentsRequest, resources []*pb.RingResource,
) error {
	for _, r := range resources {
		req.Group, req.Resource = r.GetGroup(), r.GetResource()
		all := &pb.ListAssignmentsResponse{}

		err := pages(ctx, s, req, func(page *pb.ListAssignmentsResponse) error {
			all.Assignments = append(all.GetAssignments(), page.GetAssignments()...)
			all.Fingerprint = page.GetFingerprint()

			return nil
		})
		if err != nil {
			return err
		}

		if len(all.GetAssignments()) == 0 {
			if err := l.nothing(); err != nil {
				return err
			}
		}

		if err := l.out.document(all); err != nil {
			return err
		}
	}

	return nil
}

func (l *listing) rows(
	ctx context.Context, s *asker, req *pb.ListAssignmentsRequest, resources []*pb.RingResource,
) error {
	table := l.out.table([]string{"RESOURCE", "NAMESPACE", "NAME", "SHARD", "BELONGS TO", "STATE"}, "DRAINED SINCE",
		"OWNER")
	for _, r := range resources {
		table.Reserve(0, qualified(r.GetGroup(), r.GetResource()))
	}

	bad := false

	for _, r := range resources {
		req.Group, req.Resource = r.GetGroup(), r.GetResource()
		name := qualified(r.GetGroup(), r.GetResource())

		err := pages(ctx, s, req, func(page *pb.ListAssignmentsResponse) error { return l.page(table, name, page) })

		switch {
		case err == nil:
		case len(resources) == 1 || ctx.Err() != nil || endsAll(err):
			return err
		default:
			failure.Print(l.app.Err, failure.In(name, failure.Of(err, s.where())))

			bad = true
		}
	}

	switch {
	case bad:
		return errPrinted
	case !l.seen:
		return l.nothing()
	default:
		return nil
	}
}

// endsAll reports whether an error is not about one resource: the connection is lost, nobody may ask any more, or the
// output is gone.
func endsAll(err error) bool {
	st, ok := status.FromError(err)

	return !ok || slices.Contains([]codes.Code{codes.Unavailable, codes.Canceled, codes.Unauthenticated}, st.Code())
}

// page prints the objects of one page.
func (l *listing) page(table *render.Table, resource string, page *pb.ListAssignmentsResponse) error {
	if len(page.GetAssignments()) == 0 {
		return nil
	}

	l.seen = true

	for _, object := range page.GetAssignments() {
		if l.out.format == asName {
			fmt.Fprintln(l.app.Out, resource+"/"+object.GetName())
		} else {
			l.row(table, resource, object)
		}
	}

	if l.out.format == asName {
		return nil
	}

	return table.Flush()
}

func (l *listing) row(table *render.Table, resource string, object *pb.Assignment) {
	row := []any{
		resource, object.GetNamespace(), object.GetName(), object.GetShard(), object.GetDesiredShard(),
		assignmentState(object.GetState()),
	}
	if l.out.wide() {
		row = append(row, l.app.age(object.GetDrainTime()), object.GetOwner())
	}
	table.Row(row...)
}
