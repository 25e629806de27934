package api

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/query"
	"github.com/clusterring/clusterring/services/ringquery/query/explain"
)

// The enums of explanations; what is in none of them is the zero value.
var (
	severities = map[explain.Severity]pb.Severity{
		explain.Info:    pb.Severity_SEVERITY_INFO,
		explain.Warning: pb.Severity_SEVERITY_WARNING,
		explain.Error:   pb.Severity_SEVERITY_ERROR,
	}
	nextSteps = map[explain.Step]pb.NextStep{
		explain.Nothing:     pb.NextStep_NEXT_STEP_NONE,
		explain.Assign:      pb.NextStep_NEXT_STEP_ASSIGN,
		explain.TakeOver:    pb.NextStep_NEXT_STEP_TAKE_OVER,
		explain.Drain:       pb.NextStep_NEXT_STEP_DRAIN,
		explain.Acknowledge: pb.NextStep_NEXT_STEP_ACKNOWLEDGE,
		explain.Withdraw:    pb.NextStep_NEXT_STEP_WITHDRAW,
		explain.Release:     pb.NextStep_NEXT_STEP_RELEASE,
		explain.FollowOwner: pb.NextStep_NEXT_STEP_FOLLOW_OWNER,
		explain.AwaitShard:  pb.NextStep_NEXT_STEP_AWAIT_SHARD,
	}
	founds = map[explain.Found]pb.Found{
		explain.Read:      pb.Found_FOUND_YES,
		explain.Missing:   pb.Found_FOUND_NO,
		explain.Forbidden: pb.Found_FOUND_FORBIDDEN,
		explain.NotRead:   pb.Found_FOUND_FORBIDDEN,
	}
)

// Explain implements the method of the same name.
func (s *Service) Explain(ctx context.Context, req *pb.ExplainRequest) (*pb.ExplainResponse, error) {
	return answer(ctx, s, func() (*pb.ExplainResponse, error) {
		ref, ring, err := explainQuestion(req)
		if err != nil {
			return nil, err
		}

		explained, err := s.Answers.Explain(ctx, ref, ring, s.Clock.Now())
		if err != nil {
			return nil, err
		}

		return explainedOf(&explained), nil
	})
}

// explainQuestion returns what a request to explain an object asks.
func explainQuestion(req *pb.ExplainRequest) (ref query.Reference, ring string, err error) {
	var v violations

	if req.GetRing() != "" {
		v.check("ring", validateRing(req.GetRing()))
	}

	if o := req.GetObject(); o == nil {
		v.add("object", "must be set")
	} else {
		ref = query.Reference{
			Group: o.GetGroup(), Kind: o.GetKind(), Resource: o.GetResource(), Namespace: o.GetNamespace(), Name: o.GetName(),
		}
		v.reference("object", ref)
	}

	return ref, req.GetRing(), v.err()
}

func explainedOf(e *query.Explained) *pb.ExplainResponse {
	res := &pb.ExplainResponse{Object: explainedObjectOf(&e.Object), Healthy: e.Healthy}

	for i := range e.Rings {
		res.Rings = append(res.Rings, ringExplanationOf(&e.Object, &e.Rings[i]))
	}

	for _, f := range e.Findings {
		res.Findings = append(res.Findings, &pb.Finding{
			Severity: severities[f.Severity], Reason: string(f.Reason), Ring: f.Ring, Message: f.Message, Advice: f.Advice,
		})
	}

	return res
}

func explainedObjectOf(o *explain.Object) *pb.ExplainedObject {
	res := &pb.ExplainedObject{
		Group:     o.Resource.GVR.Group,
		Resource:  o.Resource.GVR.Resource,
		Kind:      o.Resource.Kind.Kind,
		Namespace: o.Namespace,
		Name:      o.Name,
		Found:     pb.Found_FOUND_FORBIDDEN,
	}

	if o.Meta == nil {
		return res
	}

	res.Found = pb.Found_FOUND_YES
	res.Uid = string(o.Meta.UID)
	res.CreateTime = timestamppb.New(o.Meta.CreationTimestamp.Time)
	res.Deleting = !o.Meta.DeletionTimestamp.IsZero()

	if ref := metav1.GetControllerOfNoCopy(o.Meta); ref != nil {
		res.Controller = ref.Kind + "/" + ref.Name
	}

	return res
}

func ringExplanationOf(o *explain.Object, r *query.ExplainedRing) *pb.RingExplanation {
	res := &pb.RingExplanation{
		Ring:      r.Ring,
		Role:      roles[r.Role],
		Covered:   r.Covered,
		Next:      nextSteps[r.Next],
		NextActor: r.Actor,
	}

	if r.State != "" {
		a := query.Assignment{
			Namespace: o.Namespace, Name: o.Name, Shard: r.Shard, Desired: r.Desired, State: r.State, DrainTime: r.DrainTime,
		}
		if r.Owner != nil {
			a.Owner = r.Owner.Resource.Kind.Kind + "/" + r.Owner.Name
		}

		res.Assignment = assignmentOf(&a)
	}

	if r.Location != nil {
		res.Location = locationOf(*r.Location)
	}

	if r.Actual != nil {
		res.ActualShard = shardOf(*r.Actual)
	}

	if r.Belongs != nil {
		res.DesiredShard = shardOf(*r.Belongs)
	}

	if owner := r.Owner; owner != nil {
		res.Owner = &pb.ExplainedOwner{
			Resource:  owner.Resource.GroupResource().String(),
			Namespace: owner.Namespace,
			Name:      owner.Name,
			Found:     founds[owner.Found],
			Shard:     owner.Shard,
			Draining:  owner.Draining,
		}
	}

	return res
}
