"""Reinforcement learning as tutorials write it: a network that holds its own optimiser and counts
down its own epsilon, a target network, a replay buffer, Python's random numbers."""

import os
import random
import time
from collections import deque, namedtuple

import torch
import torch.nn.functional as F
from torch import nn

import outlast

PAUSE = float(os.environ.get("PAUSE", "0"))
Transition = namedtuple("Transition", "state action reward following")
random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
        self.optimizer = torch.optim.RMSprop(self.net.parameters(), lr=1e-3)
        self.epsilon, self.updates = 1.0, 0
        self.mean_reward = torch.zeros(1)

    def act(self, state):
        if random.random() < self.epsilon:
            return random.randrange(2)
        return int(self.net(state).argmax())


def environment(state, action):
    following = torch.roll(state, 1) + (0.1 if action else -0.1)
    return following.clamp(-1, 1), float(-following.abs().sum())


agent, target = Agent(), Agent()
target.load_state_dict(agent.state_dict())
memory = deque(maxlen=100)
world = {"state": torch.zeros(3), "rewards": []}
state = {"agent": agent, "target": target, "memory": memory, "world": world}
with outlast.train(
    {**state, "random": random, "torch": torch.random}, 60, checkpoint_every="3"
) as run:
    for _ in run.steps():
        for _ in range(8):
            action = agent.act(world["state"])
            following, reward = environment(world["state"], action)
            memory.append(Transition(world["state"], action, reward, following))
            world["state"] = following
            agent.mean_reward = 0.9 * agent.mean_reward + 0.1 * reward
        batch = Transition(*zip(*random.sample(memory, min(16, len(memory))), strict=True))
        value = agent.net(torch.stack(batch.state)).gather(1, torch.tensor(batch.action)[:, None])
        with torch.no_grad():
            best = target.net(torch.stack(batch.following)).max(1).values
        goal = torch.tensor(batch.reward) + 0.9 * best
        loss = F.smooth_l1_loss(value[:, 0], goal)
        agent.optimizer.zero_grad()
        loss.backward()
        agent.optimizer.step()
        agent.epsilon = max(0.05, agent.epsilon * 0.97)
        agent.updates += 1
        if agent.updates % 10 == 0:
            target.load_state_dict(agent.state_dict())
        world["rewards"].append(agent.mean_reward.item())
        run.log(loss=loss.item(), reward=agent.mean_reward.item())
        time.sleep(PAUSE)
    torch.save(agent.net.state_dict(), run.result("agent.pt"))
    run.result("rewards.txt").write_text(repr([world["rewards"], agent.epsilon, agent.updates]))
