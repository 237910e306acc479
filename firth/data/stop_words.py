"""Stop words of English and Chinese: function words that say little about what a text is about."""

_ENGLISH = """
a about above after again against all almost also although always am among an and another any anyone anything are around
as at away back be became because become been before being below between both but by came can cannot come could did do
does doing done down during each either else ever every few first for from further get gets give given go goes going
had has have having he her here hers herself him himself his how however i if in indeed into is it its itself just
last least less let like made make many may me might mine more most much must my myself near never next no nobody none
nor not nothing now of off often on once one only onto or other others our ours ourselves out over own perhaps put
quite rather said same say says see seem seemed seems shall she should since so some someone something still such take
than that the their theirs them themselves then there therefore these they thing things this those though through thus
to together too took toward two under until up upon us use used very was we well went were what whatever when where
whether which while who whom whose why will with within without would yet you your yours yourself
"""
_CHINESE = """
的 了 和 是 就 都 而 及 与 着 或 一个 没有 我们 你们 他们 她们 它们 我 你 他 她 它 这 那 这个 那个 这些 那些 这样
那样 这里 那里 之 于 在 也 不 有 中 为 以 对 从 到 把 被 让 给 向 由 并 且 但 但是 因为 所以 如果 虽然 然而 而且
因此 于是 还 还是 又 再 很 更 最 太 非常 已 已经 曾 曾经 正在 将 会 能 可 可以 可能 应该 应 要 想 得 地 所 其 其中
其他 某 各 每 另 另外 什么 怎么 怎样 为什么 哪 谁 多少 几 个 些 种 次 上 下 里 外 前 后 时 时候 以及 以后 以前 之后
之前 之间 通过 进行 根据 按照 关于 等 等等 一些 一样 一种 自己 大家 吗 呢 吧 啊 呀 嘛 哦 只 只是 只有 不是 就是
不会 不能 这种 那么 这么 如此 甚至 并且 或者 不仅 不过 那时 此 此外 同时 来 去 说 做 使 使得 像 年 月 日
"""
STOP_WORDS = frozenset((_ENGLISH + _CHINESE).split())
